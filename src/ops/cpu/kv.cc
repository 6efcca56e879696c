// Rotation, the optional norms per head, and the KV cache: written in its format, gathered back, rows and
// pages moved.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "platform/cpu/stream.h"

namespace quire::ops::cpu {

using platform::cpu::Team;

namespace {

void rotate_interleaved(float* x, const float* cosine, const float* sine, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cosine[i] - b * sine[i];
    x[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

struct RopeTask {
  RopeAndKvWrite args;
  const RowMath* math;
};

void norm_and_rotate(const RopeTask& task, float* head, std::int64_t dim, const float* norm,
                     std::int32_t offset, std::int64_t row) {
  const RopeAndKvWrite& a = task.args;
  if (norm) task.math->rms_norm(head, nullptr, norm, a.norm_eps, head, dim);
  if (!a.cos_sin) return;
  const std::int64_t half = a.rotary_dim / 2;
  const float* cosine = a.cos_sin + row * a.rotary_dim;
  if (a.interleaved) return rotate_interleaved(head + offset, cosine, cosine + half, half);
  task.math->rotate_half(head + offset, cosine, cosine + half, half);
}

// The scale of a row that keeps its own: amax / 448, and 1 for a row of zeros.
float own_scale(const float* x, std::int64_t n) {
  float largest = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest > 0.0f ? largest / kFp8E4m3Max : 1.0f;
}

void store_fp8(const float* x, std::uint8_t* y, std::int64_t n, float scale) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = f32_to_fp8_e4m3(x[i] / scale);
}

// One row of one head to its place. `out` is contiguous (dim stride = element size).
void store_row(const RowMath& math, DType type, const float* x, void* out, std::int64_t n, float scale) {
  switch (type) {
    case DType::f32:
      std::memcpy(out, x, static_cast<std::size_t>(n) * sizeof(float));
      return;
    case DType::bf16:
      return math.to_bf16(x, static_cast<std::uint16_t*>(out), n);
    case DType::f16:
      return row_to_f16(math, x, static_cast<std::uint16_t*>(out), n);
    case DType::fp8_e4m3:
      return store_fp8(x, static_cast<std::uint8_t*>(out), n, scale);
    default:
      QUIRE_CHECK(false, "KV of type {} cannot be written", to_string(type));
  }
}

// K or V of one cache: where its rows and its scales lie.
struct Side {
  void* data;
  const KvStrides* stride;
  DType type;
  const float* scale;
};
Side k_side(const KvView& kv) { return {kv.k, &kv.k_stride, kv.format.k_type, kv.k_scale}; }
Side v_side(const KvView& kv) { return {kv.v, &kv.v_stride, kv.format.v_type, kv.v_scale}; }

char* row_address(const Side& side, std::int64_t page, std::int64_t token, std::int64_t head) {
  return static_cast<char*>(side.data) + page * side.stride->page + head * side.stride->head +
         token * side.stride->token;
}
float* scale_address(const KvView& kv, const Side& side, std::int64_t page, std::int64_t token,
                     std::int64_t head) {
  const char* at = reinterpret_cast<const char*>(side.scale) + page * kv.scale_stride.page +
                   head * kv.scale_stride.head + token * kv.scale_stride.token;
  return const_cast<float*>(reinterpret_cast<const float*>(at));
}

void write_head(const RowMath& math, const KvView& kv, const Side& side, std::int64_t slot, std::int64_t head,
                const float* x, std::int64_t n) {
  const std::int64_t page = slot / kv.page_size, token = slot % kv.page_size;
  float scale = 1.0f;
  switch (kv.format.scale) {
    case KvScaleKind::tensor:
      scale = side.scale ? side.scale[0] : 1.0f;
      break;
    case KvScaleKind::layer_head:
      scale = side.scale[head];
      break;
    case KvScaleKind::token_head:
      scale = own_scale(x, n);
      *scale_address(kv, side, page, token, head) = scale;
      break;
    default:
      break;
  }
  store_row(math, side.type, x, row_address(side, page, token, head), n, scale);
}

void run_row(const RopeTask& task, std::int64_t row) {
  const RopeAndKvWrite& a = task.args;
  for (std::int64_t h = 0; h < a.q.shape[1] && a.q.data; ++h) {
    norm_and_rotate(task, head_of(a.q, row, h), a.q.shape[2], a.q_norm, a.q_rope_offset, row);
  }
  if (!a.k.data) return;
  const std::int64_t slot = a.write_slot ? a.write_slot[row] : 0;
  for (std::int64_t h = 0; h < a.k.shape[1]; ++h) {
    float* head = head_of(a.k, row, h);
    norm_and_rotate(task, head, a.k.shape[2], a.k_norm, a.k_rope_offset, row);
    if (a.kv.k) write_head(*task.math, a.kv, k_side(a.kv), slot, h, head, a.k.shape[2]);
  }
  if (!a.v.data || !a.kv.k) return;
  for (std::int64_t h = 0; h < a.v.shape[1]; ++h) {
    write_head(*task.math, a.kv, v_side(a.kv), slot, h, head_of(a.v, row, h), a.v.shape[2]);
  }
}

float load_element(DType type, const char* at, float scale) {
  switch (type) {
    case DType::f32:
      return *reinterpret_cast<const float*>(at);
    case DType::bf16:
      return bf16_to_f32(*reinterpret_cast<const std::uint16_t*>(at));
    case DType::f16:
      return f16_to_f32(*reinterpret_cast<const std::uint16_t*>(at));
    default:
      return fp8_e4m3_to_f32(*reinterpret_cast<const std::uint8_t*>(at)) * scale;
  }
}

void gather_key(const KvGather& a, std::int64_t sequence, std::int64_t key, float* out) {
  const KvView& kv = a.kv;
  const Side side = k_side(kv);
  const std::int64_t page = a.block_table[sequence * a.table_stride + key / kv.page_size];
  const std::int64_t token = key % kv.page_size;
  float scale = 1.0f;
  if (kv.format.scale == KvScaleKind::tensor && side.scale) scale = side.scale[0];
  if (kv.format.scale == KvScaleKind::layer_head) scale = side.scale[0];
  if (kv.format.scale == KvScaleKind::token_head) scale = *scale_address(kv, side, page, token, 0);
  const char* row = row_address(side, page, token, 0);
  for (std::int64_t i = 0; i < a.dim; ++i) out[i] = load_element(side.type, row + i * kv.k_stride.dim, scale);
}

bool rope_fits(const TensorView& x, std::int32_t offset, std::int32_t rotary) {
  return !x.data || (is_heads(x) && offset >= 0 && offset + rotary <= x.shape[2]);
}

}  // namespace

void CpuOps::rope_and_kv_write(const RopeAndKvWrite& args, platform::Stream& stream) {
  const std::int32_t rotary = args.cos_sin ? args.rotary_dim : 0;
  QUIRE_CHECK(rotary % 2 == 0 && rope_fits(args.q, args.q_rope_offset, rotary) &&
                  rope_fits(args.k, args.k_rope_offset, rotary),
              "rotary {} at {} and {} in heads of {} and {}", rotary, args.q_rope_offset, args.k_rope_offset,
              args.q.shape[2], args.k.shape[2]);
  QUIRE_CHECK(!args.v.data || is_heads(args.v), "v rank {}", args.v.rank);
  QUIRE_CHECK(
      !args.kv.k || (args.write_slot && args.kv.page_size > 0 && args.kv.format.packing == KvPacking::plain &&
                     args.kv.format.section_count == 0 && args.kv.format.scale != KvScaleKind::block),
      "page size {} sections {}", args.kv.page_size, args.kv.format.section_count);
  const RopeTask task{args, &math_};
  platform::cpu::as_cpu(stream).enqueue([task](Team& team) {
    const RopeAndKvWrite& a = task.args;
    const std::int64_t rows = a.q.data ? a.q.rows() : a.k.rows();
    const std::int64_t width = a.q.shape[1] * a.q.shape[2] + 2 * a.k.shape[1] * a.k.shape[2];
    for_rows(team, rows, width, [&](std::int64_t row, int) { run_row(task, row); });
  });
}

void CpuOps::kv_gather(const KvGather& args, platform::Stream& stream) {
  QUIRE_CHECK(args.kv.page_size > 0 && args.dim > 0 && args.out_type == DType::f32,
              "page size {} dim {} to {}", args.kv.page_size, args.dim, to_string(args.out_type));
  platform::cpu::as_cpu(stream).enqueue([args](Team& team) {
    for (std::int32_t s = 0; s < args.batch; ++s) {
      const std::int64_t begin = args.key_begin[s], count = std::max(0, args.key_end[s] - args.key_begin[s]);
      float* out = static_cast<float*>(args.out) + args.out_offsets[s] * args.dim;
      for_rows(team, count, args.dim,
               [&](std::int64_t i, int) { gather_key(args, s, begin + i, out + i * args.dim); });
    }
  });
}

// A task for all layers: the copies of one page are small.
void CpuOps::page_copy(const PageCopy& args, platform::Stream& stream) {
  platform::cpu::as_cpu(stream).enqueue([args](Team& team) {
    const PageCopyLayer& first = args.layers[0];
    const std::int64_t width = std::int64_t{args.tokens} * first.kv_heads * (first.k_dim + first.v_dim);
    for_rows(team, args.layer_count, width, [&](std::int64_t layer, int) {
      each_page_piece(args.layers[layer], args, [](void* to, const void* from, std::int64_t bytes) {
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
      });
    });
  });
}

void CpuOps::move_rows(const MoveRows& args, platform::Stream& stream) {
  if (args.rows == 0 || args.layer_count == 0) return;
  platform::cpu::as_cpu(stream).enqueue([args](Team& team) {
    const PageCopyLayer& first = args.layers[0];
    const std::int64_t width = std::int64_t{args.rows} * first.kv_heads * (first.k_dim + first.v_dim);
    for_rows(team, args.layer_count, width, [&](std::int64_t layer, int) {
      const std::int64_t page_size = args.layers[layer].kv.page_size;
      each_kv_rows(args.layers[layer], [&](const KvRows& rows) {
        const auto place = [&](std::int64_t slot, std::int64_t head) {
          return rows.data + slot / page_size * rows.stride.page + head * rows.stride.head +
                 slot % page_size * rows.stride.token;
        };
        for (std::int32_t i = 0; i < args.rows; ++i) {
          if (args.from[i] == args.to[i]) continue;
          for (std::int32_t h = 0; h < rows.heads; ++h)
            std::memcpy(place(args.to[i], h), place(args.from[i], h),
                        static_cast<std::size_t>(rows.row_bytes));
        }
      });
    });
  });
}

}  // namespace quire::ops::cpu
