#include "record/replay/gates.h"

#include <algorithm>
#include <cmath>

#include "tensor/values.h"

namespace quire::record {
namespace {

float scale_at(const std::vector<float>& fixed, KvScaleKind kind, const Plane* plane, std::int64_t at,
               std::int64_t head) {
  switch (kind) {
    case KvScaleKind::tensor:
      return fixed[0];
    case KvScaleKind::layer_head:
      return fixed[static_cast<std::size_t>(head)];
    case KvScaleKind::token_head:
      return load_value(DType::f32, plane->data(), at);
    default:
      return 1.0f;
  }
}

}  // namespace

Gates::Gates(const CallFrame& frame, const RecordedCall& call, const LayerCache* cache)
    : frame_(frame),
      problem_(call.problem),
      keys_(static_cast<std::size_t>(frame.batch()) * static_cast<std::size_t>(call.problem.kv_heads)) {
  for (std::int32_t i = 0; i < frame.batch(); ++i) measure(i, cache);
}

// Slots that nobody wrote hold NaN and count for nothing here.
void Gates::measure(std::int32_t sequence, const LayerCache* cache) {
  const attention::Problem& p = problem_;
  const auto index = static_cast<std::size_t>(sequence);
  const KvScaleKind kind = p.kv.scale;
  std::size_t entry = 0;
  for (std::size_t i = 0; i < index && cache != nullptr; ++i)
    entry += static_cast<std::size_t>((frame_.kv_lens[i] + p.page_size - 1) / p.page_size);
  for (std::int32_t key = 0; key < frame_.kv_lens[index]; ++key)
    for (std::int32_t h = 0; h < p.kv_heads; ++h) {
      // The row's index in planes [page, head, token] or in dense keys [token, head].
      std::int64_t at = 0;
      if (cache == nullptr) {
        at = (frame_.kv_offsets[index] + key) * p.kv_heads + h;
      } else {
        const std::int64_t page =
            cache->index_of(frame_.table[entry + static_cast<std::size_t>(key / p.page_size)]);
        at = (page * p.kv_heads + h) * p.page_size + key % p.page_size;
      }
      const void* k = cache == nullptr ? static_cast<const void*>(frame_.dense_k.data()) : cache->k().data();
      const void* v = cache == nullptr ? static_cast<const void*>(frame_.dense_v.data()) : cache->v().data();
      const double k_scale =
          scale_at(frame_.k_scale, kind, cache == nullptr ? nullptr : &cache->k_scale(), at, h);
      const double v_scale =
          scale_at(frame_.v_scale, kind, cache == nullptr ? nullptr : &cache->v_scale(), at, h);
      Keys& keys = keys_[index * static_cast<std::size_t>(p.kv_heads) + static_cast<std::size_t>(h)];
      double squares = 0;
      for (std::int32_t d = 0; d < p.qk_dim; ++d) {
        const double x = load_value(p.kv.k_type, k, at * p.qk_dim + d);
        squares += x * x;
      }
      keys.longest_k = std::fmax(keys.longest_k, std::fabs(k_scale) * std::sqrt(squares));
      // A latent V is the beginning of its K row.
      const std::int64_t v_at = at * (is_latent(p) ? p.qk_dim : p.v_dim);
      for (std::int32_t d = 0; d < p.v_dim; ++d)
        keys.largest_v = std::fmax(keys.largest_v, std::fabs(v_scale * load_value(p.kv.v_type, v, v_at + d)));
    }
}

std::int32_t Gates::sequence_of(std::int32_t row) const {
  const auto after = std::upper_bound(frame_.q_offsets.begin(), frame_.q_offsets.end(), row);
  const auto sequence = static_cast<std::int32_t>(after - frame_.q_offsets.begin()) - 1;
  return sequence < 0 || sequence >= frame_.batch() ? -1 : sequence;
}

double Gates::of(std::int32_t sequence, std::int32_t row, std::int32_t head, double largest) const {
  const attention::Problem& p = problem_;
  const std::int32_t kv_head = head / (p.q_heads / p.kv_heads);
  const Keys& keys = keys_[static_cast<std::size_t>(sequence) * static_cast<std::size_t>(p.kv_heads) +
                           static_cast<std::size_t>(kv_head)];
  double squares = 0;
  const std::int64_t q = (std::int64_t{row} * p.q_heads + head) * p.qk_dim;
  for (std::int32_t d = 0; d < p.qk_dim; ++d) {
    const double x = load_value(p.q_type, frame_.q.data(), q + d);
    squares += x * x;
  }
  const double score = std::fabs(frame_.scale * frame_.q_descale) * std::sqrt(squares) * keys.longest_k;
  const double keys_seen = frame_.kv_lens[static_cast<std::size_t>(sequence)];
  double gate = 0x1p-22 * (4 + score + std::sqrt(keys_seen)) * keys.largest_v;
  if (frame_.softcap > 0) gate += 0x1p-22 * std::min<double>(score, frame_.softcap) * keys.largest_v;
  if (p.q_type != DType::f32) gate += unit_roundoff(p.q_type) * (2 * keys.largest_v + largest);
  return gate;
}

}  // namespace quire::record
