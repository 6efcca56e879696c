// CUDA's Ops: bf16 (or f32) activations, products by our own kernels for few rows and by cuBLASLt for many,
// everything else by the kernels of this folder. Every call checks its arguments on the host and puts kernels
// on the stream; a call may be captured. Nothing is allocated after set_workspace.
//
// Exactness: every kernel computes a row in one fixed order, so equal calls give equal bits; which kernel
// multiplies depends on the number of rows (and cuBLASLt's choice on a bucket of it), so a row's bits may
// depend on how many rows a step has: run_to_run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/blas.h"
#include "ops/cuda/round_rows.h"
#include "ops/cuda/workspace.h"
#include "ops/cuda_entry.h"
#include "ops/ops.h"

namespace quire::ops::cuda {

class CudaOps final : public Ops {
 public:
  explicit CudaOps(platform::Device& device);
  std::string_view name() const override { return name_; }
  Determinism determinism() const override { return kDeterminism; }
  std::span<const LinearFormat> linear_formats() const override;
  std::int64_t workspace_bytes(const OpsLimits& limits) const override;
  void set_workspace(void* data, std::int64_t bytes, const OpsLimits& limits) override;

  void begin_step(const BeginStep& args, platform::Stream& stream) override;
  void end_step(const EndStep& args, platform::Stream& stream) override;
  void embed(const Embed& args, platform::Stream& stream) override;
  void gather_rows(const GatherRows& args, platform::Stream& stream) override;
  void copy(const Copy& args, platform::Stream& stream) override;
  void rms_norm(const RmsNorm& args, platform::Stream& stream) override;
  void linear(const Linear& args, platform::Stream& stream) override;
  void head_linear(const HeadLinear& args, platform::Stream& stream) override;
  void gated_activation(const GatedActivation& args, platform::Stream& stream) override;
  void rope_angles(const RopeAngles& args, platform::Stream& stream) override;
  void rope_and_kv_write(const RopeAndKvWrite& args, platform::Stream& stream) override;
  void kv_gather(const KvGather& args, platform::Stream& stream) override;
  void page_copy(const PageCopy& args, platform::Stream& stream) override;
  void move_rows(const MoveRows& args, platform::Stream& stream) override;
  void route(const Route& args, platform::Stream& stream) override;
  void moe_mlp(const MoeMlp& args, platform::Stream& stream) override;
  void softcap_scale(const SoftcapScale& args, platform::Stream& stream) override;
  void sample(const Sample& args, platform::Stream& stream) override;
  void score(const Score& args, platform::Stream& stream) override;

 private:
  TensorView operand(const TensorView& x, DType type, void* place, platform::Stream& stream);
  // What linear needs besides its arguments, in the workspace.
  struct LinearScratch {
    void* x = nullptr;    // the input converted
    RoundedRows rounded;  // or rounded; values null: not by this call
    RoundedRows half;     // or, of few rows, in f16
    bool is_rounded = false;
    void* bias = nullptr;
    char* panel = nullptr;
  };
  LinearScratch linear_scratch(const Linear& args) const;
  bool multiply_rounded(const TensorView& x, const LinearTarget& target, LinearScratch& scratch,
                        platform::Stream& stream);
  void multiply_many(const TensorView& x, const LinearTarget& target, void* bias_place, char* panel,
                     platform::Stream& stream);
  const void* bias_of(const LinearTarget& target, void* place, platform::Stream& stream);
  void add_bias(const TensorView& y, const float* bias, platform::Stream& stream);
  // Weights of any format as dense bf16 rows, times their scales.
  void expand(const WeightView& weight, const float* row_scale, void* target, platform::Stream& stream);

  std::string name_;
  int arch_ = 0;
  int multiprocessors_ = 0;
  Blas blas_;
  Workspace workspace_;
};

}  // namespace quire::ops::cuda
