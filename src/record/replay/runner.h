// Runner: a recorded call on a row of the table. Inputs are placed where the row's device reads them; results
// come back as floats.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/caps.h"
#include "attention/conformance/faults.h"
#include "base/result.h"
#include "platform/platform.h"
#include "record/frames.h"
#include "record/replay/cache.h"

namespace quire::record {

struct Results {
  std::vector<float> out;  // [total_q, q_heads, v_dim]
  std::vector<float> lse;  // [total_q, q_heads], or empty
};

// Keys of each sequence that a run is cut to: [batch] each.
struct KeyParts {
  std::vector<std::int32_t> begin, end;
};

struct TableRow {
  attention::Backend backend;
  platform::Kind platform = platform::Kind::cpu;
};
// Every row of this build.
std::vector<TableRow> all_rows();

class Runner {
 public:
  // exact: with float32 queries and results whatever the record's type, for the oracle. fault: planted in
  // every call that can show it; null: none.
  static Result<std::unique_ptr<Runner>> create(const TableRow& row, const EngineFrame& engine, bool exact,
                                                const conformance::Fault* fault);

  // Empty when the row can run the call (cut to parts, if so), else why not.
  std::string refusal(std::uint32_t call, bool parts) const;
  // Whether the planted fault can show in the call; true without a fault.
  bool shows_fault(std::uint32_t call) const;
  // REQUIRES no refusal. Fails when memory runs out.
  Result<Results> run(const CallFrame& frame, const Cache& cache, const KeyParts* parts);

  const attention::Backend& row() const { return row_.backend; }
  const platform::DeviceInfo& device() const { return device_->info(); }
  int threads() const { return threads_; }

 private:
  struct Instance {
    attention::Problem problem;
    std::unique_ptr<attention::Attention> attention;
    std::unique_ptr<platform::Buffer> plan;
  };
  Runner(TableRow row, const EngineFrame& engine, bool exact, const conformance::Fault* fault)
      : row_(std::move(row)), engine_(engine), exact_(exact), fault_(fault) {}
  attention::Problem problem_of(std::uint32_t call, bool parts) const;
  Instance& instance_of(std::uint32_t call, bool parts);
  // Host memory as the device reads it: itself on the CPU, a copy that lives until the run is over elsewhere.
  Result<const void*> place(const void* data, std::int64_t bytes);
  template <class T>
  Status place(const std::vector<T>& list, const T*& target);
  Result<void*> room(std::int64_t bytes);
  Status place_shape(const CallFrame& frame, const KeyParts* parts, attention::StepShape& shape);
  Status place_paged(const CallFrame& frame, const LayerCache& cache, attention::StepShape& shape,
                     KvView& view);
  Status place_dense(const CallFrame& frame, attention::StepShape& shape, KvView& view);
  Status place_queries(const CallFrame& frame, const attention::Problem& problem, attention::Args& args);
  Status run_placed(Instance& instance, const attention::StepShape& shape, const attention::Args& args);
  Results fetch(const attention::Problem& problem, const attention::StepShape& shape,
                const attention::Args& args);

  TableRow row_;
  const EngineFrame& engine_;
  bool exact_;
  const conformance::Fault* fault_;
  int threads_ = 1;
  std::unique_ptr<platform::Device> device_;
  std::unique_ptr<platform::Stream> stream_;
  std::map<std::pair<std::uint32_t, bool>, Instance> instances_;  // by call and parts
  std::vector<std::unique_ptr<platform::Buffer>> placed_;         // of the run in hand
  std::vector<std::uint32_t> table_;
  std::vector<float> exact_q_;
};

}  // namespace quire::record
