// The CPU's Ops: float32 activations, matrix products by ggml's kernels (products.h), everything else by
// row_math.h. Every call checks its arguments on the host and puts one closure on the stream.
#pragma once

#include <memory>
#include <string>

#include "ops/cpu/products.h"
#include "ops/cpu/row_math.h"
#include "ops/cpu/workspace.h"
#include "ops/ops.h"

namespace quire::ops::cpu {

inline constexpr Determinism kDeterminism = Determinism::schedule_invariant;

std::string ops_name(platform::cpu::Isa isa);

class CpuOps final : public Ops {
 public:
  explicit CpuOps(platform::cpu::Isa isa);
  std::string_view name() const override { return name_; }
  Determinism determinism() const override { return kDeterminism; }
  std::span<const LinearFormat> linear_formats() const override { return products_.formats(); }
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
  std::string name_;
  ProductTable products_;
  const RowMath& math_;
  Workspace workspace_;
};

// The level in use, or (tests) any level that this processor has.
std::unique_ptr<Ops> make_cpu_ops();
std::unique_ptr<Ops> make_cpu_ops(platform::cpu::Isa isa);

}  // namespace quire::ops::cpu
