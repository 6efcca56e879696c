// The host side of the cuda row: structs filled, kernels launched. Everything may be captured.
#include "attention/backends/cuda/backend.h"

#include <algorithm>
#include <bit>

#include "attention/backends/cuda/plan.h"
#include "base/check.h"
#include "platform/cuda/stream.h"

namespace quire::attention::cuda {
namespace {

// Device code has these enumerations as numbers (rows.cuh, finish.cuh, the kernels).
static_assert(static_cast<int>(MaskKind::causal) == 0 && static_cast<int>(MaskKind::window) == 1 &&
              static_cast<int>(MaskKind::chunked) == 2 && static_cast<int>(MaskKind::full) == 3 &&
              static_cast<int>(MaskKind::rows) == 4);
static_assert(static_cast<int>(KvScaleKind::tensor) == 1 && static_cast<int>(KvScaleKind::layer_head) == 2 &&
              static_cast<int>(KvScaleKind::token_head) == 3);

// The kernel for rows of q in T. Head dims are rounded up to those compiled.
template <class T>
Kernel kernel_for(const Problem& problem, Form form) {
  const bool fp8 = problem.kv.k_type == DType::fp8_e4m3;
  const std::int32_t qk_dim = problem.qk_dim;
  const std::int32_t v_dim = problem.v_dim;
  if (qk_dim <= 64 && v_dim <= 64) return kernels_64<T>(form, fp8);
  if (qk_dim <= 128 && v_dim <= 128) return kernels_128<T>(form, fp8);
  if (qk_dim <= 192 && v_dim <= 128) return kernels_192<T>(form, fp8);
  if (qk_dim == 576 && v_dim == 512) return kernels_latent<T>(form, fp8);
  QUIRE_CHECK(qk_dim <= 256 && v_dim <= 256, "head dims {}/{} are compiled for none", qk_dim, v_dim);
  return kernels_256<T>(form, fp8);
}

// Blocks that one SM holds at once, with the kernel's shared memory allowed.
std::int32_t blocks_per_sm(const Kernel& kernel) {
  QUIRE_CUDA_CHECK(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        kernel.shared_bytes));
  int blocks = 0;
  QUIRE_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, kernel.function, kernel.threads, static_cast<std::size_t>(kernel.shared_bytes)));
  QUIRE_CHECK(blocks > 0, "a kernel of {} threads and {} bytes of shared memory does not fit this device",
              kernel.threads, kernel.shared_bytes);
  return blocks;
}

Geometry make_geometry(const Problem& problem, platform::Device& device) {
  Geometry g;
  g.q_heads = problem.q_heads;
  g.kv_heads = problem.kv_heads;
  g.ratio = problem.q_heads / problem.kv_heads;
  g.qk_dim = problem.qk_dim;
  g.v_dim = problem.v_dim;
  const auto make = [&](Form form) {
    Launch launch;
    launch.kernel =
        problem.q_type == DType::bf16 ? kernel_for<Bf16>(problem, form) : kernel_for<F16>(problem, form);
    launch.parts = blocks_per_sm(launch.kernel) * device.info().cores;
    return launch;
  };
  g.few = make(Form::few);
  g.narrow = make(Form::narrow);
  g.wide = make(Form::wide);
  g.prefix = prefix_launch(g.wide, device.info().cores);
  g.cascade = problem.phase != Phase::extend && problem.source == KvSource::paged;
  return g;
}

Step step_of(const StepShape& shape) {
  Step s;
  s.batch = shape.batch;
  s.total_q = shape.total_q;
  s.q_offsets = shape.q_offsets;
  s.kv_lens = shape.kv_lens;
  s.block_table = shape.block_table;
  s.table_stride = shape.table_stride;
  s.kv_offsets = shape.kv_offsets;
  s.mask = static_cast<std::int32_t>(shape.mask);
  s.mask_width = shape.mask_width;
  s.row_begin = shape.row_begin;
  s.row_end = shape.row_end;
  s.tree_bits = shape.tree_bits;
  s.tree_words = shape.tree_words;
  s.tree_base = shape.tree_base;
  s.tree_depth = shape.tree_depth;
  s.part_begin = shape.part_begin;
  s.part_end = shape.part_end;
  return s;
}

Strides strides_of(const KvStrides& s) { return {s.page, s.head, s.token}; }

class CudaAttention final : public Attention {
 public:
  CudaAttention(const Problem& problem, const Geometry& geometry) : problem_(problem), geometry_(geometry) {}

  std::int64_t workspace_bytes(const Limits& limits) const override { return plan_bytes(geometry_, limits); }

  void plan(const StepShape& shape, PlanBuffer buffer, platform::Stream& stream) override {
    const Launch& launch = launch_for(geometry_, shape.max_q);
    const Layout layout = layout_for(launch, shape, buffer);
    const Groups groups = groups_of(geometry_, shape);
    Step step = step_of(shape);
    if (groups.count > 0) {
      launch_plan(plan_params(step, layout.cascade.prefix, geometry_.prefix, groups, layout), stream);
      step = suffix_of(step, layout);
    }
    launch_plan(plan_params(step, layout.plan, launch, Groups{}, layout), stream);
  }

  void run(const StepShape& shape, const Args& args, PlanBuffer buffer, platform::Stream& stream) override {
    const Launch& launch = launch_for(geometry_, shape.max_q);
    const Layout layout = layout_for(launch, shape, buffer);
    RunParams params = run_params(shape, args);
    if (groups_of(geometry_, shape).count == 0) {
      params.plan = layout.plan;
      return start(launch, params, stream);
    }
    run_cascade(launch, params, layout, stream);
  }

 private:
  Layout layout_for(const Launch& launch, const StepShape& shape, PlanBuffer buffer) const {
    const Layout layout = make_layout(geometry_, launch, {shape.batch, shape.total_q}, buffer.data);
    QUIRE_CHECK(layout.bytes <= buffer.bytes, "plan buffer of {} bytes, batch {}, rows {} need {}",
                buffer.bytes, shape.batch, shape.total_q, layout.bytes);
    return layout;
  }

  PlanParams plan_params(const Step& step, const Plan& plan, const Launch& launch, const Groups& groups,
                         const Layout& layout) const {
    PlanParams p;
    p.step = step;
    p.plan = plan;
    p.tile_rows = launch.kernel.tile_rows;
    p.ratio = geometry_.ratio;
    p.kv_heads = geometry_.kv_heads;
    p.least_tiles = launch.kernel.least_tiles;
    p.unit_cost = launch.kernel.unit_cost;
    p.groups = groups;
    p.suffix_begin = layout.cascade.suffix_begin;
    return p;
  }

  // Two runs that give float32 apart from each other, and their joining (step.h).
  void run_cascade(const Launch& launch, const RunParams& whole, const Layout& layout,
                   platform::Stream& stream) const {
    const Cascade& cascade = layout.cascade;
    RunParams part = whole;
    part.out_type = OutType::f32;
    part.out_row_stride = std::int64_t{geometry_.q_heads} * geometry_.v_dim;
    part.out_head_stride = geometry_.v_dim;
    part.sink = nullptr;
    part.role = Role::prefix;
    part.clear_idle = false;
    part.out = reinterpret_cast<char*>(cascade.sums[0]);
    part.lse = cascade.lses[0];
    part.plan = cascade.prefix;
    start(geometry_.prefix, part, stream);
    part.role = Role::suffix;
    part.clear_idle = true;
    part.step = suffix_of(whole.step, layout);
    part.out = reinterpret_cast<char*>(cascade.sums[1]);
    part.lse = cascade.lses[1];
    part.plan = layout.plan;
    start(launch, part, stream);
    CascadeJoin join;
    join.run = whole;
    join.run.plan = cascade.prefix;
    for (int i = 0; i < 2; ++i) {
      join.sums[i] = cascade.sums[i];
      join.lses[i] = cascade.lses[i];
    }
    join.tile_rows = geometry_.prefix.kernel.tile_rows;
    join.v_pad = geometry_.prefix.kernel.v_pad;
    join.type = problem_.q_type;
    launch_cascade_join(join, stream);
  }

  // The keys after each sequence's shared prefix, as a part.
  static Step suffix_of(Step step, const Layout& layout) {
    step.part_begin = layout.cascade.suffix_begin;
    step.part_end = step.kv_lens;
    return step;
  }

  RunParams run_params(const StepShape& shape, const Args& args) const {
    check_args(args);
    const KvView& kv = args.kv;
    RunParams p;
    p.step = step_of(shape);
    p.q = static_cast<const char*>(args.q);
    p.q_row_stride = args.q_row_stride;
    p.q_head_stride = args.q_head_stride;
    p.out = static_cast<char*>(args.out);
    p.out_row_stride = args.out_row_stride;
    p.out_head_stride = args.out_head_stride;
    p.lse = args.lse;
    p.sink = args.sink;
    p.k = static_cast<const char*>(kv.k);
    p.v = static_cast<const char*>(kv.v);
    p.k_stride = strides_of(kv.k_stride);
    p.v_stride = strides_of(kv.v_stride);
    p.scale_stride = strides_of(kv.scale_stride);
    p.k_scale = reinterpret_cast<const char*>(kv.k_scale);
    p.v_scale = reinterpret_cast<const char*>(kv.v_scale);
    p.scale_kind = static_cast<std::int32_t>(kv.format.scale);
    p.page_size = kv.page_size;
    p.page_shift = std::has_single_bit(static_cast<std::uint32_t>(kv.page_size))
                       ? std::countr_zero(static_cast<std::uint32_t>(kv.page_size))
                       : -1;
    p.q_heads = geometry_.q_heads;
    p.kv_heads = geometry_.kv_heads;
    p.ratio = geometry_.ratio;
    p.qk_dim = geometry_.qk_dim;
    p.v_dim = geometry_.v_dim;
    p.scale = args.scale * args.q_descale;
    p.softcap = args.softcap;
    p.q_aligned = is_aligned(args.q, (args.q_row_stride | args.q_head_stride) * 2);
    const auto aligned = [](const void* base, const KvStrides& s) {
      return is_aligned(base, s.page | s.head | s.token);
    };
    p.kv_aligned = aligned(kv.k, kv.k_stride) && aligned(kv.v, kv.v_stride);
    return p;
  }

  void check_args(const Args& args) const {
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(args.kv.format.k_type));
    QUIRE_CHECK(args.kv.k_stride.dim == bytes && args.kv.v_stride.dim == bytes,
                "dims {} and {} bytes apart, not {}", args.kv.k_stride.dim, args.kv.v_stride.dim, bytes);
    QUIRE_CHECK(args.sparse.index == nullptr, "sparse index of {} keys", args.sparse.k);
    QUIRE_CHECK(args.scale * args.q_descale > 0, "scale={} q_descale={}", args.scale, args.q_descale);
    QUIRE_CHECK((args.out_row_stride | args.out_head_stride) % 2 == 0, "out strides {} and {} are odd",
                args.out_row_stride, args.out_head_stride);
  }

  static void start(const Launch& launch, const RunParams& params, platform::Stream& stream) {
    void* arguments[] = {const_cast<RunParams*>(&params)};
    cudaLaunchAttribute beside{};
    beside.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    beside.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(launch.parts));
    config.blockDim = dim3(static_cast<unsigned>(launch.kernel.threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(launch.kernel.shared_bytes);
    config.stream = platform::cuda::native(stream);
    config.attrs = &beside;
    config.numAttrs = params.role == Role::suffix ? 1 : 0;
    QUIRE_CUDA_CHECK(cudaLaunchKernelExC(&config, launch.kernel.function, arguments));
  }

  const Problem problem_;
  const Geometry geometry_;
};

}  // namespace

Make make_attention() {
  return [](const Problem& problem, platform::Device& device) -> std::unique_ptr<Attention> {
    return std::make_unique<CudaAttention>(problem, make_geometry(problem, device));
  };
}

}  // namespace quire::attention::cuda
