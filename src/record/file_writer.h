// FileWriter: the file of a record, within a size limit. A step is written whole or not at all, and the
// header tells after each one how far the file is good, so neither a full disk nor a process that dies
// spoils what was there before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "record/frames.h"

namespace quire::record {

class FileWriter {
 public:
  // Makes `folder` where needed and the file in it, with its first frame. Refuses a folder that holds a
  // record already, and a limit that not even this frame fits; what is refused leaves nothing.
  static Result<std::unique_ptr<FileWriter>> create(const std::string& folder, std::int64_t limit_bytes,
                                                    std::span<const std::byte> engine);
  // Closes as complete. Without keep() it leaves nothing: no run came of it, and the file would stand in the
  // way of the next one.
  ~FileWriter();

  void keep() { kept_ = true; }
  // Whole frames of one step. False when the record ended with it: limit or disk, see ended() and message().
  bool write_step(std::span<const std::byte> frames);
  // Whether a step of so many bytes still fits.
  bool fits(std::int64_t step_bytes) const { return step_bytes <= limit_ - bytes(); }
  void end(Ended ended, std::string message);

  bool is_open() const { return header_.ended == Ended::open; }
  Ended ended() const { return header_.ended; }
  const std::string& message() const { return message_; }  // why it ended early; empty: it did not
  std::uint64_t steps() const { return header_.steps; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(header_.bytes); }
  std::int64_t limit() const { return limit_; }
  const std::string& path() const { return path_; }

 private:
  FileWriter(std::string path, int file, std::int64_t limit)
      : path_(std::move(path)), file_(file), limit_(limit) {}
  Status write_engine(std::span<const std::byte> frame);
  void remove_all() const;
  bool put(std::span<const std::byte> bytes, std::uint64_t at);
  bool commit(std::span<const std::byte> bytes, std::uint64_t steps);

  std::string path_;
  int file_ = -1;
  std::int64_t limit_ = 0;
  Header header_;
  std::string message_;
  bool kept_ = false;
  std::vector<std::string> made_folders_;  // outermost first
};

}  // namespace quire::record
