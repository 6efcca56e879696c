#include "tensor/kv_format.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"

namespace quire {
namespace {

// Shapes come from files: with these bounds no product below leaves 63 bits.
constexpr std::int32_t kMaxHeadsOrDim = 1 << 16;
constexpr std::int32_t kMaxPageTokens = 1 << 16;
constexpr std::int64_t kMaxPageBytes = std::int64_t{1} << 46;
constexpr std::int64_t kMaxArenaBytes = std::int64_t{1} << 60;
constexpr std::int64_t kLine = 64;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool is_fp8(DType type) { return type == DType::fp8_e4m3; }
bool is_float(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16 || is_fp8(type);
}

// Bytes of one row of one head: the sections if the format lists them, else `dims` of one type.
std::int64_t row_bytes(const KvFormat& format, DType type, std::int32_t dims) {
  if (format.section_count == 0) return dims * static_cast<std::int64_t>(dtype_bytes(type));
  std::int64_t bytes = 0;
  for (int i = 0; i < format.section_count; ++i) {
    const KvSection& section = format.sections[static_cast<std::size_t>(i)];
    bytes += section.dims * static_cast<std::int64_t>(dtype_bytes(section.type));
  }
  return bytes;
}

Status check_format(const KvFormat& format) {
  if (!is_float(format.k_type) || !is_float(format.v_type)) {
    return bad_input(fmt::format("a KV cache of {}/{} is not known: use f32, bf16, f16 or fp8_e4m3",
                                 to_string(format.k_type), to_string(format.v_type)));
  }
  if (format.packing != KvPacking::plain)
    return bad_input("no page layout packs KV rows for VNNI: use plain");
  if (format.section_count > format.sections.size()) {
    return bad_input(
        fmt::format("a KV row of {} sections: at most {}", format.section_count, format.sections.size()));
  }
  if (format.tokens_per_entry == 0) return bad_input("a KV entry of 0 tokens: use 1 or more");
  if (format.section_count > 0) return {};
  if (format.scale == KvScaleKind::block) return bad_input("block scales need a row with sections");
  const bool scaled = is_fp8(format.k_type) || is_fp8(format.v_type);
  if (scaled != (format.scale != KvScaleKind::none)) {
    return bad_input(fmt::format(
        "a {} cache with scale kind {}: {}", to_string(format.k_type), to_string(format.scale),
        scaled ? "use tensor (a scale of 1 changes nothing), layer_head or token_head" : "use none"));
  }
  return {};
}

Status check_layer(const std::vector<KvLayerShape>& layers, std::size_t index, const KvFormat& format) {
  const KvLayerShape& shape = layers[index];
  const auto in_bounds = [](std::int32_t value) { return value >= 1 && value <= kMaxHeadsOrDim; };
  if (!in_bounds(shape.kv_heads) || !in_bounds(shape.qk_dim) || !in_bounds(shape.v_dim)) {
    return bad_input(fmt::format("layer {} of the KV group has {} heads, dims {}/{}: each must be 1..{}",
                                 index, shape.kv_heads, shape.qk_dim, shape.v_dim, kMaxHeadsOrDim));
  }
  if (shape.latent && shape.v_dim > shape.qk_dim) {
    return bad_input(fmt::format("latent layer {}: V of {} dims is longer than its row of {}", index,
                                 shape.v_dim, shape.qk_dim));
  }
  if (format.section_count > 0 && !shape.latent) {
    return bad_input(fmt::format("layer {} is not latent: rows with sections are for latent layers", index));
  }
  if (shape.shares_layer < 0) return {};
  const auto source = static_cast<std::size_t>(shape.shares_layer);
  if (source >= layers.size() || layers[source].shares_layer >= 0) {
    return bad_input(
        fmt::format("layer {} shares the KV of layer {}, which keeps none of its own", index, source));
  }
  const KvLayerShape& other = layers[source];
  if (other.kv_heads != shape.kv_heads || other.qk_dim != shape.qk_dim || other.v_dim != shape.v_dim ||
      other.latent != shape.latent) {
    return bad_input(fmt::format("layer {} shares the KV of layer {}, whose shape differs", index, source));
  }
  return {};
}

// The largest alignment up to a line that costs at most 1 % of the page, and not under the longest element.
std::int64_t padded_stride(std::int64_t page_bytes, const KvFormat& format) {
  auto least = static_cast<std::int64_t>(std::max(dtype_bytes(format.k_type), dtype_bytes(format.v_type)));
  if (format.scale == KvScaleKind::token_head) least = sizeof(float);
  for (int i = 0; i < format.section_count; ++i) {
    least = std::max(
        least, static_cast<std::int64_t>(dtype_bytes(format.sections[static_cast<std::size_t>(i)].type)));
  }
  for (std::int64_t align = kLine; align > least; align /= 2) {
    if ((round_up(page_bytes, align) - page_bytes) * 100 <= page_bytes) return round_up(page_bytes, align);
  }
  return round_up(page_bytes, least);
}

// Hands out the places of a page's parts one after another. page_first: bytes from the page's start;
// layer_first: from the arena's start, a plane of all pages for each part.
struct Placer {
  PageOrder order = PageOrder::page_first;
  std::int64_t pages_total = 0;
  std::int64_t page_bytes = 0;
  std::int64_t next_plane = 0;

  std::int64_t place(std::int64_t bytes) {
    const std::int64_t in_page = page_bytes;
    page_bytes += bytes;
    if (order == PageOrder::page_first) return in_page;
    const std::int64_t plane = next_plane;
    next_plane += round_up(bytes * pages_total, kLine);
    return plane;
  }
};

}  // namespace

bool operator==(const KvFormat& a, const KvFormat& b) {
  if (a.k_type != b.k_type || a.v_type != b.v_type || a.scale != b.scale || a.packing != b.packing ||
      a.tokens_per_entry != b.tokens_per_entry || a.section_count != b.section_count) {
    return false;
  }
  for (std::size_t i = 0; i < a.section_count && i < a.sections.size(); ++i) {
    if (a.sections[i].type != b.sections[i].type || a.sections[i].dims != b.sections[i].dims) return false;
  }
  return true;
}

std::string_view to_string(KvScaleKind kind) {
  switch (kind) {
    case KvScaleKind::none:
      return "none";
    case KvScaleKind::tensor:
      return "tensor";
    case KvScaleKind::layer_head:
      return "layer_head";
    case KvScaleKind::token_head:
      return "token_head";
    case KvScaleKind::block:
      return "block";
  }
  return "unknown";
}

std::string_view to_string(PageOrder order) {
  return order == PageOrder::page_first ? "page_first" : "layer_first";
}

std::string to_string(const KvFormat& format) {
  std::string text;
  if (format.section_count > 0) {
    for (std::size_t i = 0; i < format.section_count && i < format.sections.size(); ++i) {
      text += fmt::format("{}{} x {}", i == 0 ? "" : " | ", format.sections[i].dims,
                          to_string(format.sections[i].type));
    }
  } else {
    text = to_string(format.k_type);
    if (format.v_type != format.k_type) text += fmt::format("/{}", to_string(format.v_type));
  }
  switch (format.scale) {
    case KvScaleKind::none:
      break;
    case KvScaleKind::tensor:
      text += " (per tensor)";
      break;
    case KvScaleKind::layer_head:
      text += " (per layer and head)";
      break;
    case KvScaleKind::token_head:
      text += " (per token and head)";
      break;
    case KvScaleKind::block:
      text += " (per block)";
      break;
  }
  if (format.packing == KvPacking::vnni) text += ", vnni";
  if (format.tokens_per_entry != 1) text += fmt::format(", {} tokens per entry", format.tokens_per_entry);
  return text;
}

Result<KvLayout> make_kv_layout(const std::vector<KvLayerShape>& layers, const KvFormat& format,
                                std::int32_t page_size, PageOrder order, std::int64_t pages_total) {
  QUIRE_TRY_STATUS(check_format(format));
  if (layers.empty()) return bad_input("a KV group without a layer");
  if (page_size < 1 || page_size > kMaxPageTokens) {
    return bad_input(fmt::format("page size {}: use 1 to {}", page_size, kMaxPageTokens));
  }
  if (page_size % format.tokens_per_entry != 0) {
    return bad_input(fmt::format("page size {} is not a multiple of the {} tokens of a KV entry", page_size,
                                 format.tokens_per_entry));
  }
  if (order == PageOrder::layer_first && (pages_total < 1 || pages_total > kMaxArenaBytes / kMaxPageTokens)) {
    return bad_input(fmt::format("layer_first pages need the arena's number of pages, not {}", pages_total));
  }
  KvLayout layout;
  layout.page_size_ = page_size;
  layout.order_ = order;
  layout.format_ = format;
  layout.shapes_ = layers;
  layout.layers_.resize(layers.size());
  const std::int64_t entries = page_size / format.tokens_per_entry;
  Placer placer{order, pages_total, 0, 0};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    QUIRE_TRY_STATUS(check_layer(layers, i, format));
    const KvLayerShape& shape = layers[i];
    if (shape.shares_layer >= 0) continue;
    const std::int64_t k_bytes = shape.kv_heads * entries * row_bytes(format, format.k_type, shape.qk_dim);
    const std::int64_t v_bytes = shape.kv_heads * entries * row_bytes(format, format.v_type, shape.v_dim);
    const std::int64_t planes = order == PageOrder::layer_first ? pages_total : 1;
    if (placer.page_bytes + k_bytes + v_bytes > kMaxPageBytes || k_bytes > kMaxArenaBytes / planes ||
        v_bytes > kMaxArenaBytes / planes || placer.next_plane > kMaxArenaBytes) {
      return bad_input(
          fmt::format("a KV page of {} tokens and {} layers is over {} bytes: use a smaller page", page_size,
                      layers.size(), kMaxPageBytes));
    }
    layout.layers_[i].k_offset = placer.place(k_bytes);
    layout.layers_[i].v_offset = shape.latent ? layout.layers_[i].k_offset : placer.place(v_bytes);
  }
  if (format.scale == KvScaleKind::token_head) {
    placer.page_bytes = round_up(placer.page_bytes, sizeof(float));
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].shares_layer >= 0) continue;
      const auto bytes = static_cast<std::int64_t>(layers[i].kv_heads * entries * sizeof(float));
      layout.layers_[i].k_scale_offset = placer.place(bytes);
      layout.layers_[i].v_scale_offset =
          layers[i].latent ? layout.layers_[i].k_scale_offset : placer.place(bytes);
    }
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].shares_layer >= 0) {
      layout.layers_[i] = layout.layers_[static_cast<std::size_t>(layers[i].shares_layer)];
    }
  }
  layout.page_bytes_ = placer.page_bytes;
  layout.page_stride_ =
      order == PageOrder::page_first ? padded_stride(placer.page_bytes, format) : placer.page_bytes;
  return layout;
}

KvLayout KvLayout::padded_to(std::int64_t page_stride) const {
  QUIRE_CHECK(order_ == PageOrder::page_first && page_stride >= page_stride_, "order={} stride={} has={}",
              to_string(order_), page_stride, page_stride_);
  KvLayout padded = *this;
  padded.page_stride_ = page_stride;
  return padded;
}

KvView KvLayout::view(void* arena, int layer, const float* k_scale, const float* v_scale) const {
  QUIRE_CHECK(layer >= 0 && static_cast<std::size_t>(layer) < layers_.size(), "layer={} of {}", layer,
              layers_.size());
  const KvLayerShape& shape = shapes_[static_cast<std::size_t>(layer)];
  const Layer& place = layers_[static_cast<std::size_t>(layer)];
  const std::int64_t entries = page_size_ / format_.tokens_per_entry;
  const auto strides = [&](std::int64_t row, std::int64_t element) {
    KvStrides result;
    result.page = order_ == PageOrder::page_first ? page_stride_ : shape.kv_heads * entries * row;
    result.head = entries * row;
    result.token = row;
    result.dim = element;
    return result;
  };
  char* base = static_cast<char*>(arena);
  KvView view;
  view.k = base + place.k_offset;
  view.v = base + place.v_offset;
  view.k_stride = strides(row_bytes(format_, format_.k_type, shape.qk_dim),
                          static_cast<std::int64_t>(dtype_bytes(format_.k_type)));
  view.v_stride = shape.latent ? view.k_stride
                               : strides(row_bytes(format_, format_.v_type, shape.v_dim),
                                         static_cast<std::int64_t>(dtype_bytes(format_.v_type)));
  view.format = format_;
  view.page_size = page_size_;
  if (format_.scale == KvScaleKind::token_head) {
    view.k_scale = reinterpret_cast<const float*>(base + place.k_scale_offset);
    view.v_scale = reinterpret_cast<const float*>(base + place.v_scale_offset);
    view.scale_stride = strides(sizeof(float), sizeof(float));
  } else if (format_.scale != KvScaleKind::none) {
    view.k_scale = k_scale;
    view.v_scale = v_scale;
  }
  return view;
}

}  // namespace quire
