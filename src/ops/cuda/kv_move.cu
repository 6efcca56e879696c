// Pages copied and rows moved inside the KV cache, all layers of a group in one launch: what lies where is
// data of the launch (KvRows of ops/page_pieces.h), a grid row for each.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 256;
// Of one launch: 64 layers with K, V and both scales, 128 without scales. Its arguments may have 32 KiB.
constexpr int kMostRows = 256;

struct MoveRowsOf {
  char* data;
  std::int64_t page, head, token;  // bytes
  std::int32_t heads;
  std::int32_t units;  // of a row
  std::int32_t unit;   // bytes that move at once: 16, 4 or 1
};
struct MoveArgs {
  MoveRowsOf of[kMostRows];
};
static_assert(sizeof(MoveArgs) < 32000);

__device__ __forceinline__ void move_unit(char* to, const char* from, int unit) {
  if (unit == 16) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  } else if (unit == 4) {
    *reinterpret_cast<std::uint32_t*>(to) = *reinterpret_cast<const std::uint32_t*>(from);
  } else {
    *to = *from;
  }
}

// Blocks (x: a share of the page, y: what of which layer).
__global__ void __launch_bounds__(kThreads)
    page_copy_kernel(const __grid_constant__ MoveArgs a, std::uint32_t from, std::uint32_t to, int tokens) {
  begin_kernel();
  const MoveRowsOf& rows = a.of[blockIdx.y];
  const int count = rows.heads * tokens * rows.units;
#pragma unroll 4
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < count;
       i += static_cast<int>(gridDim.x) * kThreads) {
    const int unit = i % rows.units, row = i / rows.units;
    const std::int64_t at =
        row / tokens * rows.head + row % tokens * rows.token + std::int64_t{unit} * rows.unit;
    move_unit(rows.data + to * rows.page + at, rows.data + from * rows.page + at, rows.unit);
  }
}

// Blocks (x: head, y: what of which layer). A thread takes the same unit of every row, in the rows' order, so
// what it reads is what it wrote itself.
__global__ void __launch_bounds__(kThreads)
    move_rows_kernel(const __grid_constant__ MoveArgs a, const std::int64_t* from, const std::int64_t* to,
                     int count, int page_size) {
  begin_kernel();
  const MoveRowsOf& rows = a.of[blockIdx.y];
  for (int head = static_cast<int>(blockIdx.x); head < rows.heads; head += static_cast<int>(gridDim.x)) {
    for (int unit = static_cast<int>(threadIdx.x); unit < rows.units; unit += kThreads) {
      char* base = rows.data + head * rows.head + std::int64_t{unit} * rows.unit;
      for (int i = 0; i < count; ++i) {
        const std::int64_t source = from[i], target = to[i];
        if (source == target) continue;
        move_unit(base + target / page_size * rows.page + target % page_size * rows.token,
                  base + source / page_size * rows.page + source % page_size * rows.token, rows.unit);
      }
    }
  }
}

MoveRowsOf moved(const KvRows& rows) {
  const auto all_divide = [&](std::int64_t unit) {
    return reinterpret_cast<std::uintptr_t>(rows.data) % static_cast<std::uintptr_t>(unit) == 0 &&
           rows.stride.page % unit == 0 && rows.stride.head % unit == 0 && rows.stride.token % unit == 0 &&
           rows.row_bytes % unit == 0;
  };
  const int unit = all_divide(16) ? 16 : all_divide(4) ? 4 : 1;
  return {rows.data,
          rows.stride.page,
          rows.stride.head,
          rows.stride.token,
          rows.heads,
          static_cast<std::int32_t>(rows.row_bytes / unit),
          unit};
}

// Calls start(args, count of its rows, most heads) for as many launches as the layers need: one, but for
// models of very many layers.
template <class Start>
void each_launch(const PageCopyLayer* layers, std::int32_t layer_count, Start start) {
  constexpr int kMostOfALayer = 4;
  MoveArgs args{};
  int count = 0, heads = 0;
  for (std::int32_t l = 0; l < layer_count; ++l) {
    each_kv_rows(layers[l], [&](const KvRows& rows) {
      args.of[count++] = moved(rows);
      heads = std::max(heads, rows.heads);
    });
    if (count <= kMostRows - kMostOfALayer && l + 1 < layer_count) continue;
    start(args, static_cast<unsigned>(count), static_cast<unsigned>(heads));
    count = heads = 0;
  }
}

}  // namespace

void CudaOps::page_copy(const PageCopy& args, platform::Stream& stream) {
  each_launch(args.layers, args.layer_count, [&](const MoveArgs& a, unsigned count, unsigned) {
    std::int64_t units = 0;
    for (unsigned i = 0; i < count; ++i)
      units = std::max(units, std::int64_t{a.of[i].heads} * args.tokens * a.of[i].units);
    QUIRE_CHECK(args.tokens > 0 && args.tokens <= args.layers[0].kv.page_size && units < (1 << 30),
                "{} tokens of a page of {}, {} units", args.tokens, args.layers[0].kv.page_size, units);
    const unsigned blocks = std::min(blocks_for(units, 4 * kThreads), 64u);
    launch(stream, page_copy_kernel, dim3(blocks, count), dim3(kThreads), 0, 1, a, args.from, args.to,
           args.tokens);
  });
}

void CudaOps::move_rows(const MoveRows& args, platform::Stream& stream) {
  if (args.rows == 0) return;
  QUIRE_CHECK(args.from && args.to && args.rows > 0, "{} rows", args.rows);
  each_launch(args.layers, args.layer_count, [&](const MoveArgs& a, unsigned count, unsigned heads) {
    launch(stream, move_rows_kernel, dim3(heads, count), dim3(kThreads), 0, 1, a, args.from, args.to,
           args.rows, args.layers[0].kv.page_size);
  });
}

}  // namespace quire::ops::cuda
