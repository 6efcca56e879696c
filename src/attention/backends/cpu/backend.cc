#include "attention/backends/cpu/backend.h"

#include <algorithm>

#include "attention/backends/cpu/attend.h"
#include "attention/backends/cpu/kernel.h"
#include "attention/backends/cpu/plan.h"
#include "base/check.h"
#include "platform/cpu/stream.h"

namespace quire::attention {
namespace cpu {
namespace {

const Kernels& kernels_of(platform::cpu::Isa isa) {
  switch (isa) {
    case platform::cpu::Isa::portable:
      return kernels_portable();
    case platform::cpu::Isa::avx2:
      return kernels_avx2();
    case platform::cpu::Isa::avx512:
    case platform::cpu::Isa::amx:
      return kernels_avx512();
  }
  return kernels_portable();
}

class CpuAttention : public Attention {
 public:
  CpuAttention(const Problem& problem, const Kernels& kernels)
      : source_(problem.source), geometry_(make_geometry(problem)), kernels_(kernels) {}

  std::int64_t workspace_bytes(const Limits& limits) const override { return plan_bytes(geometry_, limits); }

  void plan(const StepShape& shape, PlanBuffer buffer, platform::Stream& stream) override {
    platform::cpu::CpuStream& queue = platform::cpu::as_cpu(stream);
    const PlanLayout layout = make_layout(geometry_, shape, buffer, queue.threads());
    queue.enqueue([geometry = &geometry_, shape, layout](platform::cpu::Team&) {
      make_plan(*geometry, shape, layout);
    });
  }

  void run(const StepShape& shape, const Args& args, PlanBuffer buffer, platform::Stream& stream) override {
    platform::cpu::CpuStream& queue = platform::cpu::as_cpu(stream);
    check_args(args);
    const PlanLayout layout = make_layout(geometry_, shape, buffer, queue.threads());
    queue.enqueue([self = this, shape, args, layout](platform::cpu::Team& team) {
      self->run_units(shape, args, layout, team);
    });
  }

 private:
  void check_args(const Args& args) const {
    const std::int64_t bytes = static_cast<std::int64_t>(dtype_bytes(args.kv.format.k_type));
    QUIRE_CHECK(args.kv.k_stride.dim == bytes && args.kv.v_stride.dim == bytes,
                "dims {} and {} bytes apart, not {}", args.kv.k_stride.dim, args.kv.v_stride.dim, bytes);
    QUIRE_CHECK(args.sparse.index == nullptr, "sparse index of {} keys", args.sparse.k);
  }

  void run_units(const StepShape& shape, const Args& args, const PlanLayout& layout,
                 platform::cpu::Team& team) const {
    const AttendContext context{&geometry_, &kernels_, &shape, &args, &layout, source_};
    const std::int64_t count = layout.header->work_count;
    // The rows of no sequence are one more piece of work, dealt first. Threads that keep step take turns.
    team.for_each(1 + count, [&](std::int64_t index, int thread) {
      if (index == 0) return clear_outside(context);
      const std::int64_t later = index - 1 + team.threads();
      const Work next = later < count ? work_of(layout, later) : Work{};
      attend(context, work_of(layout, index - 1), later < count ? &next : nullptr, thread);
    });
  }

  const KvSource source_;
  const Geometry geometry_;
  const Kernels& kernels_;
};

constexpr DimSet dims_of() {
  DimSet set;
  for (std::int32_t d : {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 512})
    set.values[set.count++] = {d, d};
  set.values[set.count++] = {192, 128};
  set.values[set.count++] = {576, 512};
  return set;
}

constexpr Box box_of(DType type, std::uint32_t scales) {
  Box box;
  box.platforms = bit(platform::Kind::cpu);
  box.phases = bit(Phase::decode) | bit(Phase::verify) | bit(Phase::extend);
  box.dims = dims_of();
  box.ratio_max = 128;
  box.q_types = bit(DType::f32);
  box.kv.types = bit(type);
  box.kv.scales = scales;
  box.page.kind = PageRule::Kind::any;
  box.orders = bit(PageOrder::page_first) | bit(PageOrder::layer_first);
  box.sources = bit(KvSource::paged) | bit(KvSource::dense);
  box.masks = bit(MaskKind::causal) | bit(MaskKind::window) | bit(MaskKind::chunked) | bit(MaskKind::full) |
              bit(MaskKind::rows);
  box.features = kSoftcap | kSink | kLse | kTree | kPart | kLatent;
  return box;
}

// One box per element type: K and V have the same.
constexpr Box kBoxes[] = {
    box_of(DType::f32, bit(KvScaleKind::none)),
    box_of(DType::bf16, bit(KvScaleKind::none)),
    box_of(DType::f16, bit(KvScaleKind::none)),
    box_of(DType::fp8_e4m3,
           bit(KvScaleKind::tensor) | bit(KvScaleKind::layer_head) | bit(KvScaleKind::token_head)),
};

}  // namespace

std::unique_ptr<Attention> make_attention(const Problem& problem, platform::cpu::Isa isa) {
  return std::make_unique<CpuAttention>(problem, kernels_of(isa));
}

}  // namespace cpu

Backend cpu_backend() {
  Caps caps;
  caps.boxes = cpu::kBoxes;
  caps.capture = Capture::any;
  caps.host_lengths = HostLengths::no;
  caps.determinism = Determinism::schedule_invariant;
  caps.longest_query = 16;
  caps.recommended_page = 64;
  caps.recommended_because =
      "decode at 16 and 1 is some 12 and 35 % slower, at 256 within 5 % (EPYC Zen 4, 2026-11-30)";
  return {"cpu", "flash attention, portable, AVX2 or AVX-512", caps,
          [](const Problem& problem, platform::Device&) {
            return cpu::make_attention(problem, platform::cpu::isa());
          }};
}

}  // namespace quire::attention
