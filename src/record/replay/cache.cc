#include "record/replay/cache.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"

namespace quire::record {
namespace {

constexpr std::uint8_t kNan = 0xff;  // as a byte of every floating type
constexpr std::uint32_t kPadding = 0;
constexpr std::uint32_t kUnknown = 1;

// rows [heads, count, width] into slots [begin, begin + count) of a page [heads, page_size, width].
void put(std::uint8_t* page, const void* rows, std::int64_t heads, std::int64_t page_size, std::int64_t begin,
         std::int64_t count, std::int64_t width) {
  const auto* from = static_cast<const std::uint8_t*>(rows);
  for (std::int64_t h = 0; h < heads; ++h)
    std::memcpy(page + (h * page_size + begin) * width, from + h * count * width,
                static_cast<std::size_t>(count * width));
}

}  // namespace

void Plane::append(std::size_t bytes, std::uint8_t fill) {
  const std::size_t begin = bytes_;
  bytes_ += bytes;
  lines_.resize((bytes_ + sizeof(Line) - 1) / sizeof(Line));
  if (bytes > 0) std::memset(data() + begin, fill, bytes);
}

LayerCache::LayerCache(const attention::Problem& problem) : problem_(problem), latent_(is_latent(problem)) {
  add_page(0);     // kPadding
  add_page(kNan);  // kUnknown
}

bool LayerCache::fits(const attention::Problem& p) const {
  return p.kv == problem_.kv && p.kv_heads == problem_.kv_heads && p.qk_dim == problem_.qk_dim &&
         p.v_dim == problem_.v_dim && p.page_size == problem_.page_size && is_latent(p) == latent_;
}

std::int64_t LayerCache::page_bytes() const {
  const std::int64_t rows = std::int64_t{problem_.kv_heads} * problem_.page_size;
  const std::int64_t scales = problem_.kv.scale == KvScaleKind::token_head ? 2 * sizeof(float) : 0;
  return rows * (k_row_bytes(problem_) + (latent_ ? 0 : v_row_bytes(problem_)) + scales);
}

std::int64_t LayerCache::bytes() const { return pages_ * page_bytes(); }

void LayerCache::add_page(std::uint8_t fill) {
  const auto rows =
      static_cast<std::size_t>(problem_.kv_heads) * static_cast<std::size_t>(problem_.page_size);
  k_.append(rows * static_cast<std::size_t>(k_row_bytes(problem_)), fill);
  if (!latent_) v_.append(rows * static_cast<std::size_t>(v_row_bytes(problem_)), fill);
  if (problem_.kv.scale == KvScaleKind::token_head) {
    k_scale_.append(rows * sizeof(float), fill);
    v_scale_.append(rows * sizeof(float), fill);
  }
  ++pages_;
}

void LayerCache::apply(const KvRows& rows) {
  const auto placed = index_.try_emplace(rows.page, pages_);
  if (placed.second) add_page(kNan);
  const std::int64_t page = placed.first->second;
  const std::int64_t heads = problem_.kv_heads;
  const std::int64_t size = problem_.page_size;
  const auto write = [&](Plane& plane, const void* from, std::int64_t width) {
    put(plane.data() + page * heads * size * width, from, heads, size, rows.begin, rows.count, width);
  };
  write(k_, rows.k.data(), k_row_bytes(problem_));
  if (!latent_) write(v_, rows.v.data(), v_row_bytes(problem_));
  if (problem_.kv.scale != KvScaleKind::token_head) return;
  write(k_scale_, rows.k_scale.data(), sizeof(float));
  write(v_scale_, rows.v_scale.data(), sizeof(float));
}

std::uint32_t LayerCache::index_of(std::uint32_t page) const {
  if (page == 0) return kPadding;
  const auto found = index_.find(page);
  return found == index_.end() ? kUnknown : found->second;
}

KvView LayerCache::view() const {
  const auto strides = [&](std::int64_t width, std::int64_t element) {
    const std::int64_t head = problem_.page_size * width;
    return KvStrides{problem_.kv_heads * head, head, width, element};
  };
  KvView view;
  view.format = problem_.kv;
  view.page_size = problem_.page_size;
  view.k_stride = strides(k_row_bytes(problem_), static_cast<std::int64_t>(dtype_bytes(problem_.kv.k_type)));
  view.v_stride =
      latent_ ? view.k_stride
              : strides(v_row_bytes(problem_), static_cast<std::int64_t>(dtype_bytes(problem_.kv.v_type)));
  view.scale_stride = strides(sizeof(float), sizeof(float));
  return view;
}

Status Cache::apply(const CallFrame& frame, const RecordedCall& call) {
  if (call.problem.source == attention::KvSource::dense) return {};
  const auto [at, is_new] = layers_.try_emplace({call.group, frame.layer}, call.problem);
  LayerCache& layer = at->second;
  if (!layer.fits(call.problem))
    return bad_input(fmt::format(
        "the record is damaged: two calls of layer {} disagree on its cache; record again", frame.layer));
  std::int64_t before = is_new ? 0 : layer.bytes();
  for (const KvRows& rows : frame.kv) {
    layer.apply(rows);
    bytes_ += layer.bytes() - before;
    before = layer.bytes();
    if (bytes_ > most_bytes_)
      return no_resources(fmt::format(
          "the record's pages take over {} bytes here: record fewer --record-layers", most_bytes_));
  }
  return {};
}

const LayerCache& Cache::of(const CallFrame& frame, const RecordedCall& call) const {
  const auto found = layers_.find({call.group, frame.layer});
  QUIRE_CHECK(found != layers_.end(), "layer {} of group {} was not applied", frame.layer, call.group);
  return found->second;
}

}  // namespace quire::record
