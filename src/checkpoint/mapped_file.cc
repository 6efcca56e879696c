#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "checkpoint/printable.h"

namespace quire::checkpoint {
namespace {

// Closes on every way out.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Opens a regular file; O_NONBLOCK so that a pipe of that name cannot hang the program.
Result<std::size_t> open_regular(const std::string& path, Descriptor& descriptor) {
  descriptor.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor.fd < 0)
    return bad_input(fmt::format("cannot open {}: {}", printable(path), std::strerror(errno)));
  struct stat status {};
  if (::fstat(descriptor.fd, &status) != 0) {
    return bad_input(fmt::format("cannot read {}: {}", printable(path), std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) return bad_input(fmt::format("{} is not a regular file", printable(path)));
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  Descriptor descriptor;
  QUIRE_TRY(size, open_regular(path, descriptor));
  if (size == 0) return bad_input(fmt::format("{} is empty", printable(path)));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.fd, 0);
  if (data == MAP_FAILED) {
    return no_resources(
        fmt::format("cannot map the {} bytes of {}: {}", size, printable(path), std::strerror(errno)));
  }
  MappedFile file;
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  // Advice only: a kernel that refuses it reads on demand.
  (void)::madvise(data, size, MADV_WILLNEED);
  return file;
}

void MappedFile::release(std::size_t offset, std::size_t size) const {
  QUIRE_CHECK(offset <= size_ && size <= size_ - offset, "offset={} size={} file={}", offset, size, size_);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + size) / page * page;
  if (begin < end) (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::string& path, std::size_t most) {
  Descriptor descriptor;
  QUIRE_TRY(size, open_regular(path, descriptor));
  if (size > most) {
    return bad_input(fmt::format("{} has {} bytes, over the limit of {}", printable(path), size, most));
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = ::read(descriptor.fd, text.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return bad_input(fmt::format("cannot read {}: {}", printable(path), std::strerror(errno)));
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  text.resize(done);
  return text;
}

}  // namespace quire::checkpoint
