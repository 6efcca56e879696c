#include "record/file_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace quire::record {
namespace {

// Folders that hold something else by now stay: they are not empty.
void remove_folders(const std::vector<std::string>& outermost_first) {
  std::error_code error;
  for (auto folder = outermost_first.rbegin(); folder != outermost_first.rend(); ++folder)
    std::filesystem::remove(*folder, error);
}

}  // namespace

Result<std::unique_ptr<FileWriter>> FileWriter::create(const std::string& folder, std::int64_t limit_bytes,
                                                       std::span<const std::byte> engine) {
  const std::int64_t needed = static_cast<std::int64_t>(kHeaderBytes + engine.size());
  if (needed > limit_bytes)
    return bad_input(fmt::format(
        "--record-limit {} is less than the record's first {} bytes: use {} or more, and room for steps",
        limit_bytes, needed, needed));
  std::error_code error;
  std::vector<std::string> made;
  for (std::filesystem::path at = folder; !at.empty() && !std::filesystem::exists(at, error);
       at = at.parent_path())
    made.insert(made.begin(), at.string());
  std::filesystem::create_directories(folder, error);
  if (error) {
    remove_folders(made);
    return bad_input(fmt::format("--record {}: the folder cannot be made: {}", folder, error.message()));
  }
  const std::string path = (std::filesystem::path(folder) / kFileName).string();
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0 && errno == EEXIST)
    return bad_input(fmt::format("--record {}: the folder holds a record already: name another, or remove {}",
                                 folder, path));
  if (file < 0) {
    const int why = errno;
    remove_folders(made);
    return bad_input(fmt::format("--record {}: {} cannot be written: {}", folder, path, std::strerror(why)));
  }
  std::unique_ptr<FileWriter> writer(new FileWriter(path, file, limit_bytes));
  writer->header_.bytes = kHeaderBytes;
  writer->made_folders_ = std::move(made);
  QUIRE_TRY_STATUS(writer->write_engine(engine));
  return writer;
}

FileWriter::~FileWriter() {
  if (is_open()) end(Ended::complete, "");
  ::close(file_);
  if (!kept_) remove_all();
}

void FileWriter::remove_all() const {
  std::error_code error;
  std::filesystem::remove(path_, error);
  remove_folders(made_folders_);
}

bool FileWriter::put(std::span<const std::byte> bytes, std::uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    at += static_cast<std::uint64_t>(done);
  }
  return true;
}

// Data first, then the header that counts it.
bool FileWriter::commit(std::span<const std::byte> bytes, std::uint64_t steps) {
  Header next = header_;
  next.bytes += bytes.size();
  next.steps += steps;
  if (!put(bytes, header_.bytes) || !put(encode_header(next), 0)) return false;
  header_ = next;
  return true;
}

Status FileWriter::write_engine(std::span<const std::byte> frame) {
  if (!commit(frame, 0))
    return no_resources(fmt::format("{} cannot be written: {}", path_, std::strerror(errno)));
  return {};
}

bool FileWriter::write_step(std::span<const std::byte> frames) {
  if (!fits(static_cast<std::int64_t>(frames.size()))) {
    end(Ended::limit, fmt::format("the record has reached its limit of {} bytes", limit_));
    return false;
  }
  if (commit(frames, 1)) return true;
  end(Ended::disk, fmt::format("{} cannot be written: {}", path_, std::strerror(errno)));
  return false;
}

// The header is there already, so this needs no room on the disk.
void FileWriter::end(Ended ended, std::string message) {
  if (!is_open()) return;
  message_ = std::move(message);
  if (::ftruncate(file_, static_cast<off_t>(header_.bytes)) != 0 && message_.empty())
    message_ = fmt::format("{} cannot be shortened: {}", path_, std::strerror(errno));
  header_.ended = ended;
  if (!put(encode_header(header_), 0) && message_.empty())
    message_ = fmt::format("{} cannot be closed: {}", path_, std::strerror(errno));
}

}  // namespace quire::record
