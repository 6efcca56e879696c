// The contiguous stretches of memory that a page copy consists of. Included by ops.h.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "ops/ops.h"

namespace quire::ops {

// Calls visit(to, from, bytes) for every stretch of one layer.
template <class Visit>
void each_page_piece(const PageCopyLayer& layer, const PageCopy& copy, Visit visit) {
  const KvView& kv = layer.kv;
  QUIRE_CHECK(copy.tokens > 0 && copy.tokens <= kv.page_size && kv.format.packing == KvPacking::plain,
              "{} tokens of a page of {}", copy.tokens, kv.page_size);
  const auto side = [&](void* base, const KvStrides& stride, std::int64_t row_bytes) {
    for (std::int32_t h = 0; h < layer.kv_heads; ++h) {
      char* to = static_cast<char*>(base) + copy.to * stride.page + h * stride.head;
      const char* from = static_cast<const char*>(base) + copy.from * stride.page + h * stride.head;
      if (stride.token == row_bytes) {
        visit(to, from, copy.tokens * row_bytes);
        continue;
      }
      for (std::int64_t t = 0; t < copy.tokens; ++t)
        visit(to + t * stride.token, from + t * stride.token, row_bytes);
    }
  };
  side(kv.k, kv.k_stride, layer.k_dim * kv.k_stride.dim);
  if (layer.v_dim > 0) side(kv.v, kv.v_stride, layer.v_dim * kv.v_stride.dim);
  if (kv.format.scale != KvScaleKind::token_head) return;
  const auto scale_bytes = static_cast<std::int64_t>(sizeof(float));
  side(const_cast<float*>(kv.k_scale), kv.scale_stride, scale_bytes);
  if (layer.v_dim > 0) side(const_cast<float*>(kv.v_scale), kv.scale_stride, scale_bytes);
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
