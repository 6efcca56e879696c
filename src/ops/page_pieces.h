// What of a layer lies in its pages, and the contiguous stretches that a page copy consists of. Included by
// ops.h.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "ops/ops.h"

namespace quire::ops {

// K, V or scales of one layer as a copy sees them: of every head and token a row of so many bytes.
struct KvRows {
  char* data = nullptr;
  KvStrides stride;
  std::int64_t row_bytes = 0;
  std::int32_t heads = 0;
};

// Calls visit(rows) for all that a layer keeps in its pages.
template <class Visit>
void each_kv_rows(const PageCopyLayer& layer, Visit visit) {
  const KvView& kv = layer.kv;
  QUIRE_CHECK(kv.format.packing == KvPacking::plain, "packing {}", static_cast<int>(kv.format.packing));
  const auto rows = [&](const void* data, const KvStrides& stride, std::int64_t row_bytes) {
    visit(KvRows{static_cast<char*>(const_cast<void*>(data)), stride, row_bytes, layer.kv_heads});
  };
  rows(kv.k, kv.k_stride, layer.k_dim * kv.k_stride.dim);
  if (layer.v_dim > 0) rows(kv.v, kv.v_stride, layer.v_dim * kv.v_stride.dim);
  if (kv.format.scale != KvScaleKind::token_head) return;
  const auto scale_bytes = static_cast<std::int64_t>(sizeof(float));
  rows(kv.k_scale, kv.scale_stride, scale_bytes);
  if (layer.v_dim > 0) rows(kv.v_scale, kv.scale_stride, scale_bytes);
}

// Calls visit(to, from, bytes) for every stretch of one layer.
template <class Visit>
void each_page_piece(const PageCopyLayer& layer, const PageCopy& copy, Visit visit) {
  QUIRE_CHECK(copy.tokens > 0 && copy.tokens <= layer.kv.page_size, "{} tokens of a page of {}", copy.tokens,
              layer.kv.page_size);
  each_kv_rows(layer, [&](const KvRows& rows) {
    for (std::int32_t h = 0; h < rows.heads; ++h) {
      char* to = rows.data + copy.to * rows.stride.page + h * rows.stride.head;
      const char* from = rows.data + copy.from * rows.stride.page + h * rows.stride.head;
      if (rows.stride.token == rows.row_bytes) {
        visit(to, from, copy.tokens * rows.row_bytes);
        continue;
      }
      for (std::int64_t t = 0; t < copy.tokens; ++t)
        visit(to + t * rows.stride.token, from + t * rows.stride.token, rows.row_bytes);
    }
  });
}

// Here, not in a .cc: libraries of one platform's ops stand below the library that knows all platforms.
inline void Ops::page_copy(const PageCopy& args, platform::Stream& stream) {
  for (std::int32_t l = 0; l < args.layer_count; ++l) {
    each_page_piece(args.layers[l], args, [&stream](void* to, const void* from, std::int64_t bytes) {
      stream.copy(to, from, bytes);
    });
  }
}

}  // namespace quire::ops
