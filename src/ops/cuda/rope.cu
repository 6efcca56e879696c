// Rotation, the optional norms per head, and the KV cache: written in its format, gathered back.
//
// Two kernels rotate: one for heads of 64, 128 or 256 that are rotated whole, by halves, where eight elements
// move at once and partners meet by shuffles; and one for everything else. With 64 rows the instructions
// count, not the bytes.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostDim = 1024;  // of a head

// K or V of one cache: where its rows and its scales lie.
struct Side {
  char* data;
  KvStrides stride;
  DType type;
  const float* scale;
};

struct RopeArgs {
  Rows q, k, v;
  const float* q_norm;
  const float* k_norm;
  float eps;
  const float* cos_sin;
  std::int32_t rotary, q_offset, k_offset;
  bool interleaved;
  const std::int64_t* write_slot;
  Side k_side, v_side;
  KvStrides scale_stride;
  KvScaleKind scale;
  std::int32_t page_size;
};

__device__ __forceinline__ float* scale_address(const Side& side, const KvStrides& stride, std::int64_t page,
                                                std::int64_t token, std::int64_t head) {
  const char* at = reinterpret_cast<const char*>(side.scale) + page * stride.page + head * stride.head +
                   token * stride.token;
  return const_cast<float*>(reinterpret_cast<const float*>(at));
}

// Two neighbours of a head.
__device__ __forceinline__ float2 load_pair(const char* head, DType type, int pair) {
  if (type == DType::f32) return reinterpret_cast<const float2*>(head)[pair];
  if (type == DType::bf16) return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(head)[pair]);
  return __half22float2(reinterpret_cast<const __half2*>(head)[pair]);
}
__device__ __forceinline__ void store_pair(char* head, DType type, int pair, float2 x) {
  if (type == DType::f32) {
    reinterpret_cast<float2*>(head)[pair] = x;
  } else if (type == DType::bf16) {
    reinterpret_cast<__nv_bfloat162*>(head)[pair] = __float22bfloat162_rn(x);
  } else if (type == DType::f16) {
    reinterpret_cast<__half2*>(head)[pair] = __float22half2_rn(x);
  } else {
    const auto both = static_cast<std::uint16_t>(float_to_fp8(x.x) | float_to_fp8(x.y) << 8);
    reinterpret_cast<std::uint16_t*>(head)[pair] = both;
  }
}

// Where a slot's row lies. The short division wherever it will do: the long one takes as long as a load.
struct Place {
  std::int64_t page, token;
};
__device__ __forceinline__ Place place_of(const RopeArgs& a, std::int64_t slot) {
  const auto size = static_cast<std::uint32_t>(a.page_size);
  const std::int64_t page = slot >> 32 ? slot / a.page_size : static_cast<std::uint32_t>(slot) / size;
  return {page, slot - page * a.page_size};
}

// Writes one head to its place, as saturate(x / scale).
template <int kPairs>
__device__ __forceinline__ void write_head(const RopeArgs& a, const Side& side, std::int64_t slot, int head,
                                           const float2 (&x)[kPairs], int pairs, int lane) {
  const auto [page, token] = place_of(a, slot);
  float scale = 1.0f;
  if (a.scale == KvScaleKind::tensor && side.scale) scale = side.scale[0];
  if (a.scale == KvScaleKind::layer_head) scale = side.scale[head];
  if (a.scale == KvScaleKind::token_head) {
    float largest = 0.0f;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      if (p * 32 + lane < pairs) largest = fmaxf(largest, fmaxf(fabsf(x[p].x), fabsf(x[p].y)));
    }
    largest = warp_max(largest);
    scale = largest > 0.0f ? largest / kFp8E4m3Max : 1.0f;
    if (lane == 0) *scale_address(side, a.scale_stride, page, token, head) = scale;
  }
  char* row = side.data + page * side.stride.page + head * side.stride.head + token * side.stride.token;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int pair = p * 32 + lane;
    if (pair >= pairs) break;
    const float2 y = side.type == DType::fp8_e4m3 ? make_float2(x[p].x / scale, x[p].y / scale) : x[p];
    store_pair(row, side.type, pair, y);
  }
}

// The pair at `at` of the rotated stretch. By halves its partners come from `stretch`, the warp's copy of the
// stretch in shared memory.
__device__ __forceinline__ float2 rotated(const RopeArgs& a, const float* cosine, const float* stretch,
                                          int at, float2 old) {
  const int half = a.rotary / 2;
  const float* sine = cosine + half;
  if (a.interleaved) {
    const float c = cosine[at / 2], s = sine[at / 2];
    return make_float2(old.x * c - old.y * s, old.y * c + old.x * s);
  }
  const auto turned = [&](int i, float mine) {
    if (i < half) return mine * cosine[i] - stretch[i + half] * sine[i];
    return mine * cosine[i - half] + stretch[i - half] * sine[i - half];
  };
  return make_float2(turned(at, old.x), turned(at + 1, old.y));
}

// Block (row, y): warps take the row's heads (of q, k and v in turn) in steps of all warps of the row. A
// head: norm, rotation, back to where it was, and to the cache.
template <int kPairs>
__global__ void __launch_bounds__(kWarps * 32) rope_kernel(const __grid_constant__ RopeArgs a) {
  __shared__ float exchange[kWarps][kPairs * 64];
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t row = blockIdx.x;
  const int q_heads = a.q.data ? a.q.heads : 0, k_heads = a.k.data ? a.k.heads : 0;
  const int heads = q_heads + k_heads + (a.v.data ? a.v.heads : 0);
  const float* cosine = a.cos_sin + row * a.rotary;
  for (int at = static_cast<int>(blockIdx.y) * kWarps + warp; at < heads;
       at += static_cast<int>(gridDim.y) * kWarps) {
    const bool is_q = at < q_heads, is_v = at >= q_heads + k_heads;
    const int head = is_q ? at : is_v ? at - q_heads - k_heads : at - q_heads;
    const Rows& rows = is_q ? a.q : is_v ? a.v : a.k;
    const float* norm = is_v ? nullptr : is_q ? a.q_norm : a.k_norm;
    const int offset = is_q ? a.q_offset : a.k_offset;
    const bool rotate = !is_v && a.cos_sin;
    const int pairs = rows.n / 2;
    char* x = head_at(rows, row, head);
    // On its way beside the head; its page is worked out when the row is written.
    const std::int64_t slot = !is_q && a.k_side.data ? a.write_slot[row] : 0;
    float2 value[kPairs];
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int pair = p * 32 + lane;
      if (pair >= pairs) break;
      value[p] = load_pair(x, rows.type, pair);
      squares += value[p].x * value[p].x + value[p].y * value[p].y;
    }
    if (norm) {
      const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(rows.n) + a.eps);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const int pair = p * 32 + lane;
        if (pair >= pairs) break;
        value[p].x *= factor * norm[2 * pair];
        value[p].y *= factor * norm[2 * pair + 1];
      }
    }
    if (rotate) {
      float* shared = exchange[warp];
      if (!a.interleaved) {
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
          const int pair = p * 32 + lane;
          if (pair >= pairs) break;
          *reinterpret_cast<float2*>(shared + 2 * pair) = value[p];
        }
        __syncwarp();
      }
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const int from = 2 * (p * 32 + lane) - offset;  // of the rotated stretch; offset and rotary are even
        if (from >= 0 && from < a.rotary) value[p] = rotated(a, cosine, shared + offset, from, value[p]);
      }
      __syncwarp();
    }
    if (norm || rotate) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const int pair = p * 32 + lane;
        if (pair >= pairs) break;
        store_pair(x, rows.type, pair, value[p]);
      }
    }
    if (!is_q && a.k_side.data) write_head(a, is_v ? a.v_side : a.k_side, slot, head, value, pairs, lane);
  }
}

// ---- heads that are rotated whole ----

// A head has kLanes lanes with eight elements each. Block (row, y): its warps take the row's heads in order,
// 32 / kLanes at a time. Lanes behind the last head go along with it and store nothing.
template <int kLanes>
__global__ void __launch_bounds__(kWarps * 32) rope_whole_kernel(const __grid_constant__ RopeArgs a) {
  constexpr int kDim = kLanes * 8, kHalf = kDim / 2;
  begin_kernel();
  const int thread = static_cast<int>(blockIdx.y) * kWarps * 32 + static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x;
  const int q_heads = a.q.data ? a.q.heads : 0, k_heads = a.k.data ? a.k.heads : 0;
  const int heads = q_heads + k_heads + (a.v.data ? a.v.heads : 0);
  const bool live = thread / kLanes < heads;
  const int at = live ? thread / kLanes : heads - 1, i = thread % kLanes * 8;
  const bool is_q = at < q_heads, is_v = at >= q_heads + k_heads;
  const int head = is_q ? at : is_v ? at - q_heads - k_heads : at - q_heads;
  const Rows& rows = is_q ? a.q : is_v ? a.v : a.k;
  const float* norm = is_v ? nullptr : is_q ? a.q_norm : a.k_norm;
  const bool rotate = !is_v && a.cos_sin;
  const std::int64_t slot = !is_q && a.k_side.data ? a.write_slot[row] : 0;
  char* x = head_at(rows, row, head);
  float value[8], cosine[8], sine[8];
  load8(x, rows.type, true, i, kDim, value);
  if (a.cos_sin) {
    const char* turn = reinterpret_cast<const char*>(a.cos_sin + row * kDim);
    load8(turn, DType::f32, true, i % kHalf, kDim, cosine);
    load8(turn, DType::f32, true, kHalf + i % kHalf, kDim, sine);
  }
  // What follows is decided alike by all lanes wherever they exchange values.
  if (a.q_norm || a.k_norm) {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += value[j] * value[j];
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(kDim) + a.eps);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (norm) value[j] *= factor * norm[i + j];
    }
  }
  if (a.cos_sin) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float partner = __shfl_xor_sync(0xffffffffu, value[j], kLanes / 2);
      const float turned = value[j] * cosine[j] + (i < kHalf ? -partner : partner) * sine[j];
      if (rotate) value[j] = turned;
    }
  }
  if (live && (norm || rotate)) store8(x, rows.type, true, i, kDim, value);
  if (!a.k_side.data) return;
  const Side& side = is_v ? a.v_side : a.k_side;
  const Place place = place_of(a, slot);
  float scale = 1.0f;
  if (a.scale == KvScaleKind::tensor && side.scale) scale = side.scale[0];
  if (a.scale == KvScaleKind::layer_head) scale = side.scale[is_q ? 0 : head];
  if (a.scale == KvScaleKind::token_head) {
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf(value[j]));
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    scale = largest > 0.0f ? largest / kFp8E4m3Max : 1.0f;
    if (live && !is_q && i == 0) *scale_address(side, a.scale_stride, place.page, place.token, head) = scale;
  }
  if (!live || is_q) return;
  if (side.type == DType::fp8_e4m3) {
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j] /= scale;
  }
  char* to =
      side.data + place.page * side.stride.page + head * side.stride.head + place.token * side.stride.token;
  store8(to, side.type, true, i, kDim, value);
}

// ---- kv_gather ----

struct GatherArgs {
  KvGather a;
  Side side;
};

// Blocks (x: stretch of keys, y: sequence); one warp per key.
__global__ void __launch_bounds__(256) kv_gather_kernel(const __grid_constant__ GatherArgs args) {
  begin_kernel();
  const KvGather& a = args.a;
  const Side& side = args.side;
  const auto s = static_cast<std::int64_t>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int32_t begin = a.key_begin[s], end = a.key_end[s];
  for (std::int32_t key = begin + static_cast<std::int32_t>(blockIdx.x * 8 + threadIdx.x / 32); key < end;
       key += static_cast<std::int32_t>(gridDim.x) * 8) {
    const std::int64_t page = a.block_table[s * a.table_stride + key / a.kv.page_size];
    const std::int64_t token = key % a.kv.page_size;
    float scale = 1.0f;
    if (a.kv.format.scale == KvScaleKind::tensor && side.scale) scale = side.scale[0];
    if (a.kv.format.scale == KvScaleKind::layer_head) scale = side.scale[0];
    if (a.kv.format.scale == KvScaleKind::token_head)
      scale = *scale_address(side, a.kv.scale_stride, page, token, 0);
    const char* row = side.data + page * side.stride.page + token * side.stride.token;
    char* out = static_cast<char*>(a.out) + (a.out_offsets[s] + key - begin) * a.dim *
                                                static_cast<std::int64_t>(element_bytes(a.out_type));
    for (int i = lane; i < a.dim; i += 32) {
      const float x = load_one(row, side.type, i);
      store_one(out, a.out_type, i, side.type == DType::fp8_e4m3 ? x * scale : x);
    }
  }
}

Side side_of(void* data, const KvStrides& stride, DType type, const float* scale) {
  return {static_cast<char*>(data), stride, type, scale};
}

bool fits(const TensorView& x, std::int32_t offset, std::int32_t rotary) {
  if (!x.data) return true;
  const bool even = x.shape[2] % 2 == 0 && x.stride[0] % 2 == 0 && x.stride[1] % 2 == 0 &&
                    reinterpret_cast<std::uintptr_t>(x.data) % (2 * dtype_bytes(x.dtype)) == 0;
  return is_heads(x) && even && x.shape[2] <= kMostDim && offset >= 0 && offset % 2 == 0 &&
         offset + rotary <= x.shape[2];
}

// Whether rope_whole_kernel takes the operands: all heads alike, and everything at 16-byte places.
bool rotates_whole(const RopeArgs& a) {
  const std::int32_t dim = a.q.data ? a.q.n : a.k.n;
  const auto alike = [&](const Rows& rows) { return !rows.data || (rows.n == dim && rows.vector); };
  const auto whole = [](const Side& side) {
    return reinterpret_cast<std::uintptr_t>(side.data) % 16 == 0 && side.stride.page % 16 == 0 &&
           side.stride.head % 16 == 0 && side.stride.token % 16 == 0;
  };
  return (dim == 64 || dim == 128 || dim == 256) && alike(a.q) && alike(a.k) && alike(a.v) &&
         !a.interleaved && a.q_offset == 0 && a.k_offset == 0 && (a.rotary == dim || !a.cos_sin) &&
         reinterpret_cast<std::uintptr_t>(a.cos_sin) % 16 == 0 &&
         (!a.k_side.data || (whole(a.k_side) && (!a.v.data || whole(a.v_side))));
}

}  // namespace

void CudaOps::rope_and_kv_write(const RopeAndKvWrite& args, platform::Stream& stream) {
  const std::int32_t rotary = args.cos_sin ? args.rotary_dim : 0;
  QUIRE_CHECK(rotary % 2 == 0 && fits(args.q, args.q_rope_offset, rotary) &&
                  fits(args.k, args.k_rope_offset, rotary) && fits(args.v, 0, 0),
              "rotary {} at {} and {} in heads of {}, {} and {}", rotary, args.q_rope_offset,
              args.k_rope_offset, args.q.shape[2], args.k.shape[2], args.v.shape[2]);
  QUIRE_CHECK(
      !args.kv.k || (args.write_slot && args.kv.page_size > 0 && args.kv.format.packing == KvPacking::plain &&
                     args.kv.format.section_count == 0 && args.kv.format.scale != KvScaleKind::block),
      "page size {} sections {}", args.kv.page_size, args.kv.format.section_count);
  RopeArgs a{};
  const std::int64_t rows = args.q.data ? args.q.rows() : args.k.rows();
  std::int64_t heads = 0, dim = 0;
  const auto set = [&](Rows& to, const TensorView& view) {
    if (!view.data) return;
    to = rows_of(view);
    heads += view.shape[1];
    dim = std::max(dim, view.shape[2]);
  };
  set(a.q, args.q);
  set(a.k, args.k);
  if (args.kv.k) set(a.v, args.v);  // V is only written: without a cache there is nothing to do for it
  a.q_norm = args.q_norm;
  a.k_norm = args.k_norm;
  a.eps = args.norm_eps;
  a.cos_sin = args.cos_sin;
  a.rotary = rotary;
  a.q_offset = args.q_rope_offset;
  a.k_offset = args.k_rope_offset;
  a.interleaved = args.interleaved;
  a.write_slot = args.write_slot;
  a.k_side = side_of(args.kv.k, args.kv.k_stride, args.kv.format.k_type, args.kv.k_scale);
  a.v_side = side_of(args.kv.v, args.kv.v_stride, args.kv.format.v_type, args.kv.v_scale);
  a.scale_stride = args.kv.scale_stride;
  a.scale = args.kv.format.scale;
  a.page_size = args.kv.page_size;
  if (rotates_whole(a)) {
    const auto lanes = static_cast<std::int64_t>(dim / 8);
    const dim3 grid(static_cast<unsigned>(rows), blocks_for(heads * lanes, kWarps * 32));
    const auto kernel = dim == 64    ? rope_whole_kernel<8>
                        : dim == 128 ? rope_whole_kernel<16>
                                     : rope_whole_kernel<32>;
    return launch(stream, kernel, grid, dim3(kWarps * 32), 0, 1, a);
  }
  // With few rows a warp has one head, with many several, so that a row's setup is paid for once.
  const dim3 grid(static_cast<unsigned>(rows), blocks_for(heads, rows < 256 ? kWarps : 4 * kWarps));
  const auto kernel = dim <= 128 ? rope_kernel<2> : dim <= 256 ? rope_kernel<4> : rope_kernel<kMostDim / 64>;
  launch(stream, kernel, grid, dim3(kWarps * 32), 0, 1, a);
}

void CudaOps::kv_gather(const KvGather& args, platform::Stream& stream) {
  QUIRE_CHECK(
      args.kv.page_size > 0 && args.dim > 0 &&
          (args.out_type == DType::f32 || args.out_type == DType::bf16 || args.out_type == DType::f16),
      "page size {} dim {} to {}", args.kv.page_size, args.dim, to_string(args.out_type));
  GatherArgs a{args, side_of(args.kv.k, args.kv.k_stride, args.kv.format.k_type, args.kv.k_scale)};
  // How many keys there are is known on the device only: a full wave of blocks walks over them.
  const auto blocks = static_cast<unsigned>(std::max(1, 4 * multiprocessors_ / std::max(1, args.batch)));
  launch(stream, kv_gather_kernel, dim3(blocks, static_cast<unsigned>(args.batch)), dim3(256), 0, 1, a);
}

}  // namespace quire::ops::cuda
