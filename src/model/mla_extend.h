// The dense form of latent attention for extend rows: keys and values of this step's own tokens are
// up-projected and attended causally ("mla.own"); the prefix is gathered from the cache in chunks of a fixed
// number of tokens, each up-projected, attended in full ("mla.prefix") and merged by lse. Far less arithmetic
// than the absorbed form for long queries; the bits depend on the chunking, so it serves levels below
// schedule_invariant only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/determinism.h"
#include "model/step.h"
#include "model/weights.h"

namespace quire::model {

inline constexpr std::int32_t kPrefixChunkTokens = 1024;

// Whether extend of this model takes this form at the level.
bool uses_dense_extend(const ModelSpec& spec, Determinism level);

// One layer's inputs: the extend rows of the step only.
struct MlaExtendArgs {
  TensorView q;       // [rows, heads, nope + rope], rotated
  TensorView latent;  // [rows, latent + rope], normed and rotated: the cache rows
  const WeightView* kv_b = nullptr;
  KvView kv;
  TensorView out;  // [rows, heads, v], dense
};

class MlaExtend {
 public:
  MlaExtend(const ModelSpec& spec, platform::Device& device);

  std::int64_t bytes(const ModelLimits& limits) const;
  void set_activations(void* data, const ModelLimits& limits);
  // Plans the step on the host from the exact lengths of its extend rows and uploads it. Waits when the
  // uploads of kStaging earlier steps are still queued.
  void begin_step(const StepContext& context, const StepInputs& inputs);
  void run(const Step& step, const MlaExtendArgs& args);

 private:
  static constexpr std::size_t kStaging = 4;

  // One gather: consecutive sequences, whose stretches are entries [first_entry, first_entry + sequences).
  struct Pass {
    std::int32_t first_sequence = 0;
    std::int32_t sequences = 0;
    std::int32_t first_entry = 0;
    std::int32_t tokens = 0;
    std::int32_t max_keys = 0;
  };
  // The step's plan as arrays, at the same offsets in staging and on the device.
  struct Arrays {
    std::int64_t* own_offset = nullptr;    // [batch] first token of a sequence's own keys
    std::int64_t* entry_offset = nullptr;  // [entries] first row of a stretch in the gathered chunk
    std::int32_t* own_len = nullptr;       // [batch]
    std::int32_t* key_begin = nullptr;     // [entries]
    std::int32_t* key_end = nullptr;
    std::int32_t* key_count = nullptr;
  };
  struct Staging {
    std::vector<std::byte> data;
    std::unique_ptr<platform::Event> uploaded;
  };
  struct Work {
    Arrays arrays;
    TensorView prefix;     // [chunk, latent + rope]
    TensorView expanded;   // [rows, heads * (nope + v)]
    TensorView keys;       // [rows, heads * (nope + rope)]
    TensorView part_out;   // [max_total_q, heads * v]
    float* lse = nullptr;  // [max_total_q, heads]
    float* part_lse = nullptr;
  };

  static std::int32_t max_entries(const ModelLimits& limits);
  static Arrays plan_arrays(Region& region, const ModelLimits& limits);
  Work plan_work(Region& region, const ModelLimits& limits) const;
  void fill_passes(const StepInputs& inputs, const Arrays& arrays);
  KvView expand(const Step& step, TensorView latent, const WeightView& kv_b);
  void run_own(const Step& step, const MlaExtendArgs& args);
  void run_pass(const Step& step, const MlaExtendArgs& args, const Pass& pass);

  const ModelSpec& spec_;
  Work work_;
  std::int64_t array_bytes_ = 0;
  Staging staging_[kStaging];
  std::size_t next_staging_ = 0;
  std::vector<Pass> passes_;
};

}  // namespace quire::model
