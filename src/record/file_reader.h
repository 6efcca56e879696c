// FileReader: the frames of a record, one after another. Takes any bytes: what does not decode is an error
// that says so, and nothing larger than the file is ever allocated for it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>

#include "base/result.h"
#include "checkpoint/mapped_file.h"
#include "record/frames.h"

namespace quire::record {

struct ReaderOptions {
  bool checksums = true;  // off: for tests that spoil what the checksums protect
};

class FileReader {
 public:
  using Frame = std::variant<StepFrame, CallFrame, OutcomeFrame>;

  // `folder` as given to --record.
  static Result<FileReader> open(const std::string& folder);
  // `file` outlives the reader.
  static Result<FileReader> parse(std::span<const std::byte> file, const std::string& name,
                                  ReaderOptions options = {});

  const Header& header() const { return header_; }
  const EngineFrame& engine() const { return engine_; }
  // The next frame; nullopt after the last one.
  Result<std::optional<Frame>> next();

 private:
  FileReader() = default;
  struct Raw {
    FrameKind kind;
    std::span<const std::byte> payload;
  };
  Result<Raw> take();

  checkpoint::MappedFile mapped_;
  std::span<const std::byte> rest_;
  std::string name_;
  ReaderOptions options_;
  Header header_;
  EngineFrame engine_;
  std::uint64_t step_ = 0;  // of the last step frame
  bool in_step_ = false;
};

}  // namespace quire::record
