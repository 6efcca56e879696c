// Recorder: attention calls and plans of an engine into a record. It reads what a call read and what it
// gave, after the call, by waiting for the stream: a recorded step is slow, and its results are the same.
// Memory: one step's frames, on the host. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/contract.h"
#include "base/result.h"
#include "platform/platform.h"
#include "record/file_writer.h"
#include "record/frames.h"
#include "record/number_set.h"

namespace quire::record {

struct RecorderOptions {
  std::string folder;
  std::int64_t limit_bytes = 0;
  NumberSet layers = NumberSet::all();
  NumberSet steps = NumberSet::all();
};

class Recorder {
 public:
  // Fails when a call that should be recorded cannot be, and when the file cannot be made.
  static Result<std::unique_ptr<Recorder>> create(const RecorderOptions& options, const EngineFrame& engine);

  // A step runs, recorded or not: from here on the file stays. A run that never began leaves none.
  void keep() { file_->keep(); }
  // Whether the step will be recorded. False once the record has ended.
  bool wants(std::uint64_t step) const;
  // Table entries that got another page, of every step, recorded or not: the page's former rows are void.
  // Whoever moves cache rows by other means than attention's own writes tells it in the same way.
  void forget(std::uint32_t group, std::uint32_t page);

  void begin_step(const StepFrame& frame);
  // After the call was put on the stream. first_token: the step's token row that row 0 of q is.
  void call(std::uint32_t index, std::int32_t layer, std::int32_t first_token,
            const attention::StepShape& shape, const attention::Args& args, platform::Stream& stream);
  void end_step(const OutcomeFrame& frame);

  const FileWriter& file() const { return *file_; }

 private:
  explicit Recorder(RecorderOptions options) : options_(std::move(options)) {}
  // Of one layer's cache: how many slots of each page the record holds as they are.
  struct LayerPages {
    std::uint32_t group = 0;
    std::int32_t layer = 0;
    std::vector<std::uint16_t> known;
  };
  LayerPages& pages_of(std::uint32_t group, std::int32_t layer);
  void fetch_shape(const attention::StepShape& shape, platform::Stream& stream);
  void fetch_table(const attention::StepShape& shape, std::int32_t page_size, platform::Stream& stream);
  void fetch_layer(const attention::StepShape& shape, const attention::Args& args, platform::Stream& stream);
  void fetch_dense(const attention::Args& args, platform::Stream& stream);
  void fetch_pages(const attention::Args& args, std::int32_t layer, platform::Stream& stream);
  void list_new_rows(LayerPages& pages, std::int32_t page_size);

  RecorderOptions options_;
  EngineFrame engine_;
  std::unique_ptr<FileWriter> file_;
  std::vector<std::byte> pending_;  // frames of the step in progress
  std::vector<LayerPages> layers_;
  CallFrame frame_;  // of the call in progress; its vectors are used again
  bool overflown_ = false;
};

}  // namespace quire::record
