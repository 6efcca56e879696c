// MappedFile: a whole file mapped read-only, so that weights are the page cache's memory and are read when
// first used. Move only; everything that points into it borrows. A file that shrinks while it is mapped
// raises SIGBUS on reading: files are not to be changed under a running engine.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace quire::checkpoint {

class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Refuses what is not a regular file, and empty files. Asks the kernel to read ahead.
  static Result<MappedFile> open(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that [offset, offset + size) is not needed any more (after it was copied elsewhere).
  void release(std::size_t offset, std::size_t size) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole of a small text file; over `most` bytes is an error.
Result<std::string> read_text_file(const std::string& path, std::size_t most);

}  // namespace quire::checkpoint
