// Files built byte by byte, for tests of the parsers. Tests only.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::checkpoint::testing {

// Little-endian bytes, appended in order.
class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    const std::size_t at = data_.size();
    data_.resize(at + sizeof(T));
    std::memcpy(data_.data() + at, &value, sizeof(T));
    return *this;
  }
  Bytes& text(std::string_view text) {
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    data_.insert(data_.end(), begin, begin + text.size());
    return *this;
  }
  // A GGUF string: length, bytes.
  Bytes& string(std::string_view value) { return put<std::uint64_t>(value.size()).text(value); }
  Bytes& fill(std::size_t count) {
    data_.resize(data_.size() + count);
    return *this;
  }
  Bytes& align(std::size_t alignment) { return fill((alignment - data_.size() % alignment) % alignment); }

  std::size_t size() const { return data_.size(); }
  std::span<const std::byte> span() const { return data_; }
  std::vector<std::byte> take() const { return data_; }

 private:
  std::vector<std::byte> data_;
};

// A safetensors file of that header and so many data bytes.
inline std::vector<std::byte> safetensors(std::string_view header, std::size_t data_bytes) {
  return Bytes().put<std::uint64_t>(header.size()).text(header).fill(data_bytes).take();
}

// A folder of its own, removed at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string write(std::string_view name, std::string_view content) const {
    const std::string file = path_ + "/" + std::string(name);
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }
  std::string write(std::string_view name, const std::vector<std::byte>& content) const {
    return write(name, std::string_view(reinterpret_cast<const char*>(content.data()), content.size()));
  }

 private:
  std::string path_;
};

}  // namespace quire::checkpoint::testing
