#include "attention/backends/cuda/backend.h"
#include "platform/cuda_archs.h"

namespace quire::attention {
namespace cuda {
namespace {

constexpr std::uint32_t kAllPhases = bit(Phase::decode) | bit(Phase::verify) | bit(Phase::extend);
constexpr std::uint32_t kAllMasks = bit(MaskKind::causal) | bit(MaskKind::window) | bit(MaskKind::chunked) |
                                    bit(MaskKind::full) | bit(MaskKind::rows);

// Compiled for 64, 128, 192/128 and 256; what lies between is padded with zeros in shared memory.
constexpr DimSet head_dims() {
  DimSet set;
  for (std::int32_t d : {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256}) set.values[set.count++] = {d, d};
  set.values[set.count++] = {192, 128};
  return set;
}

constexpr Box box_of(std::uint32_t q_types, DType kv, std::uint32_t scales) {
  Box box;
  box.platforms = bit(platform::Kind::cuda);
  box.arch_min = platform::kLeastCudaArch;  // the widest kernels take 227 KB of shared memory a block
  box.arch_max = platform::kMostCudaArch;
  box.phases = kAllPhases;
  box.dims = head_dims();
  box.ratio_max = 128;
  box.q_types = q_types;
  box.kv.types = bit(kv);
  box.kv.scales = scales;
  box.page.kind = PageRule::Kind::any;
  box.orders = bit(PageOrder::page_first) | bit(PageOrder::layer_first);
  box.sources = bit(KvSource::paged) | bit(KvSource::dense);
  box.masks = kAllMasks;
  box.features = kSoftcap | kSink | kLse | kTree | kPart | kLatent;
  return box;
}

// The latent form has kernels of its own, which read V as the first part of K's row.
constexpr Box latent_of(Box box) {
  box.dims = DimSet{};
  box.dims.values[box.dims.count++] = {576, 512};
  box.needs = kLatent;
  return box;
}

// q and KV of one 16-bit type, or KV in e4m3.
constexpr Box kBf16 = box_of(bit(DType::bf16), DType::bf16, bit(KvScaleKind::none));
constexpr Box kF16 = box_of(bit(DType::f16), DType::f16, bit(KvScaleKind::none));
constexpr Box kE4m3 =
    box_of(bit(DType::bf16) | bit(DType::f16), DType::fp8_e4m3,
           bit(KvScaleKind::tensor) | bit(KvScaleKind::layer_head) | bit(KvScaleKind::token_head));
constexpr Box kBoxes[] = {kBf16, kF16, kE4m3, latent_of(kBf16), latent_of(kF16), latent_of(kE4m3)};

constexpr std::uint32_t kFloats = bit(DType::f32) | bit(DType::bf16) | bit(DType::f16);
constexpr Box kReferenceBoxes[] = {{
    .platforms = bit(platform::Kind::cuda),
    .phases = kAllPhases,
    .q_types = kFloats,
    .kv = {.types = kFloats | bit(DType::fp8_e4m3),
           .scales = bit(KvScaleKind::none) | bit(KvScaleKind::tensor) | bit(KvScaleKind::layer_head) |
                     bit(KvScaleKind::token_head),
           .mixed = true},
    .page = {.kind = PageRule::Kind::any, .min = 1, .max = 256},
    .orders = bit(PageOrder::page_first) | bit(PageOrder::layer_first),
    .sources = bit(KvSource::paged) | bit(KvSource::dense),
    .masks = kAllMasks,
    .features = kSoftcap | kSink | kLse | kTree | kPart | kSparse | kLatent,
}};

}  // namespace
}  // namespace cuda

Backend cuda_backend() {
  Caps caps;
  caps.boxes = cuda::kBoxes;
  caps.capture = Capture::any;
  caps.host_lengths = HostLengths::no;
  caps.determinism = Determinism::run_to_run;
  caps.longest_query = 16;
  caps.recommended_page = 64;
  caps.recommended_because = "1, 16, 64 and 256 decode within 3 % of each other (H200, 2026-11-30)";
  return {"cuda", "flash attention with mma.sync, sm_90 to sm_103", caps, cuda::make_attention()};
}

Backend reference_cuda_backend() {
  Caps caps;
  caps.boxes = cuda::kReferenceBoxes;
  caps.capture = Capture::any;
  caps.host_lengths = HostLengths::no;
  caps.determinism = Determinism::schedule_invariant;
  caps.longest_query = kMaxTree;
  return {"reference", "the contract in double precision: the oracle of the others, for any shape", caps,
          cuda::make_reference()};
}

}  // namespace quire::attention
