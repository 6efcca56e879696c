// Encoder and Decoder: one description of a frame's fields (frames.cc) is run by both, so that what is
// written and what is read cannot disagree. Little endian, no padding; a list is its count (u64) and its
// items. The decoder believes nothing: a count is checked against the bytes that are left before anything is
// allocated, and after the first misfit it yields zeros and stays failed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace quire::record {

static_assert(std::endian::native == std::endian::little, "records are little endian, as every host of ours");

template <class T>
concept Scalar = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class Encoder {
 public:
  explicit Encoder(std::vector<std::byte>& out) : out_(out) {}

  template <Scalar T>
  void operator()(const T& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof(T));
  }
  void operator()(const std::string& text) { raw(text.data(), text.size(), 1); }
  template <Scalar T>
  void operator()(const std::vector<T>& list) {
    raw(list.data(), list.size(), sizeof(T));
  }
  // fields(coder, item) describes one item.
  template <class T, class Fields>
  void list(const std::vector<T>& items, Fields fields) {
    (*this)(static_cast<std::uint64_t>(items.size()));
    for (const T& item : items) fields(*this, const_cast<T&>(item));
  }

 private:
  void raw(const void* data, std::size_t count, std::size_t size) {
    (*this)(static_cast<std::uint64_t>(count));
    const auto* bytes = static_cast<const std::byte*>(data);
    if (count > 0) out_.insert(out_.end(), bytes, bytes + count * size);
  }
  std::vector<std::byte>& out_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool failed() const { return failed_; }
  bool at_end() const { return !failed_ && rest_.empty(); }

  template <Scalar T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;
      read(&byte, 1);
      value = byte != 0;
    } else {
      value = T{};
      read(&value, sizeof(T));
    }
  }
  void operator()(std::string& text) {
    text.resize(count_of(1));
    read(text.data(), text.size());
  }
  template <Scalar T>
  void operator()(std::vector<T>& list) {
    static_assert(!std::is_same_v<T, bool>);
    list.resize(count_of(sizeof(T)));
    read(list.data(), list.size() * sizeof(T));
  }
  template <class T, class Fields>
  void list(std::vector<T>& items, Fields fields) {
    const std::size_t count = count_of(1);
    items.clear();
    for (std::size_t i = 0; i < count && !failed_; ++i) fields(*this, items.emplace_back());
  }

 private:
  std::size_t count_of(std::size_t size) {
    std::uint64_t count = 0;
    read(&count, sizeof(count));
    if (!failed_ && count > rest_.size() / size) failed_ = true;
    return failed_ ? 0 : static_cast<std::size_t>(count);
  }
  void read(void* target, std::size_t bytes) {
    if (failed_ || bytes > rest_.size()) {
      failed_ = true;
      return;
    }
    if (bytes > 0) std::memcpy(target, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
  }
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace quire::record
