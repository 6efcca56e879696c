#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/cpu/testing.h"
#include "tensor/kv_format.h"

namespace quire::ops::cpu {
namespace {

using platform::cpu::Isa;
using testing::levels;
using testing::random_floats;
using testing::Rig;

class Cache : public ::testing::TestWithParam<Isa> {};

// An arena of one group with its layout; reads single elements by the formulas of kv_format.h.
struct Arena {
  Arena(KvLayerShape shape, KvFormat format, std::int32_t page_size, std::int32_t pages, PageOrder order)
      : layout(make_kv_layout({shape, shape}, format, page_size, order, pages).value()),
        bytes(static_cast<std::size_t>(layout.page_stride() * pages + (1 << 16)), 0xee) {}
  KvView view(int layer, const float* k_scale, const float* v_scale) {
    return layout.view(bytes.data(), layer, k_scale, v_scale);
  }
  KvLayout layout;
  std::vector<unsigned char> bytes;
};

double element(const KvView& kv, bool is_k, std::int64_t slot, std::int64_t head, std::int64_t dim) {
  const KvStrides& stride = is_k ? kv.k_stride : kv.v_stride;
  const std::int64_t page = slot / kv.page_size, token = slot % kv.page_size;
  const char* at = static_cast<const char*>(is_k ? kv.k : kv.v) + page * stride.page + head * stride.head +
                   token * stride.token + dim * stride.dim;
  const float* scales = is_k ? kv.k_scale : kv.v_scale;
  double scale = 1.0;
  if (kv.format.scale == KvScaleKind::tensor) scale = scales[0];
  if (kv.format.scale == KvScaleKind::layer_head) scale = scales[head];
  if (kv.format.scale == KvScaleKind::token_head) {
    scale =
        *reinterpret_cast<const float*>(reinterpret_cast<const char*>(scales) + page * kv.scale_stride.page +
                                        head * kv.scale_stride.head + token * kv.scale_stride.token);
  }
  switch (is_k ? kv.format.k_type : kv.format.v_type) {
    case DType::f32:
      return *reinterpret_cast<const float*>(at);
    case DType::bf16:
      return bf16_to_f32(*reinterpret_cast<const std::uint16_t*>(at));
    case DType::f16:
      return f16_to_f32(*reinterpret_cast<const std::uint16_t*>(at));
    default:
      return scale * fp8_e4m3_to_f32(*reinterpret_cast<const std::uint8_t*>(at));
  }
}

unsigned char& element_byte(const KvView& kv, std::int64_t page, std::int64_t head, std::int64_t token) {
  return static_cast<unsigned char*>(
      kv.k)[page * kv.k_stride.page + head * kv.k_stride.head + token * kv.k_stride.token];
}

double relative_of(DType type) {
  return type == DType::f32 ? 1e-6 : type == DType::bf16 ? 0.0040 : type == DType::f16 ? 0.0005 : 0.0630;
}

struct Rope {
  bool interleaved;
  std::int32_t rotary, offset;
};

// Rotates the naive way, in double, after the optional norm.
std::vector<double> rotated(const float* x, std::int64_t dim, const float* norm, const float* cos_sin,
                            Rope rope) {
  std::vector<double> y(x, x + dim);
  if (norm) {
    double squares = 0.0;
    for (double v : y) squares += v * v;
    for (std::int64_t i = 0; i < dim; ++i)
      y[static_cast<std::size_t>(i)] *= norm[i] / std::sqrt(squares / dim + 1e-6);
  }
  const std::int64_t half = rope.rotary / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t a = rope.offset + (rope.interleaved ? 2 * i : i);
    const std::int64_t b = rope.offset + (rope.interleaved ? 2 * i + 1 : i + half);
    const double c = cos_sin[i], s = cos_sin[half + i], first = y[static_cast<std::size_t>(a)],
                 second = y[static_cast<std::size_t>(b)];
    y[static_cast<std::size_t>(a)] = first * c - second * s;
    y[static_cast<std::size_t>(b)] = second * c + first * s;
  }
  return y;
}

void check_format(Isa isa, KvFormat format, PageOrder order, Rope rope, bool norms) {
  Rig rig(isa);
  const std::int32_t rows = 11, q_heads = 5, kv_heads = 2, dim = 20, v_dim = 12, page_size = 4, pages = 6;
  Arena arena({kv_heads, dim, v_dim, false, -1}, format, page_size, pages, order);
  const float k_scale[] = {0.02f, 0.03f}, v_scale[] = {0.01f, 0.05f};
  const bool own = format.scale == KvScaleKind::token_head;
  KvView kv = arena.view(1, own ? nullptr : k_scale, own ? nullptr : v_scale);
  std::vector<float> q = random_floats(rows * q_heads * dim, 1), k = random_floats(rows * kv_heads * dim, 2),
                     v = random_floats(rows * kv_heads * v_dim, 3), norm_q = random_floats(dim, 4),
                     norm_k = random_floats(dim, 5), cos_sin = random_floats(rows * rope.rotary, 6);
  const std::vector<float> q0 = q, k0 = k;
  std::vector<std::int64_t> slots;
  for (std::int64_t r = 0; r < rows; ++r) slots.push_back(r == 4 ? 0 : page_size + (r * 7) % 19);
  RopeAndKvWrite args;
  args.q = TensorView::heads(q.data(), DType::f32, rows, q_heads, dim);
  args.k = TensorView::heads(k.data(), DType::f32, rows, kv_heads, dim);
  args.v = TensorView::heads(v.data(), DType::f32, rows, kv_heads, v_dim);
  if (norms) args.q_norm = norm_q.data(), args.k_norm = norm_k.data();
  args.norm_eps = 1e-6f;
  args.cos_sin = rope.rotary ? cos_sin.data() : nullptr;
  args.rotary_dim = rope.rotary;
  args.q_rope_offset = args.k_rope_offset = rope.offset;
  args.interleaved = rope.interleaved;
  args.write_slot = slots.data();
  args.kv = kv;
  rig.ops->rope_and_kv_write(args, *rig.stream);
  rig.stream->synchronize();
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* angles = cos_sin.data() + r * rope.rotary;
    for (std::int64_t h = 0; h < q_heads; ++h) {
      const std::int64_t at = (r * q_heads + h) * dim;
      const std::vector<double> expected =
          rotated(&q0[at], dim, norms ? norm_q.data() : nullptr, angles, rope);
      for (std::int64_t i = 0; i < dim; ++i) ASSERT_NEAR(q[at + i], expected[i], 2e-5);
    }
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      const std::vector<double> expected =
          rotated(&k0[(r * kv_heads + h) * dim], dim, norms ? norm_k.data() : nullptr, angles, rope);
      double amax = 0.0;
      for (double e : expected) amax = std::max(amax, std::fabs(e));
      for (std::int64_t i = 0; i < dim; ++i) {
        // fp8: half a step at the value, or half the smallest step (2^-10 of the scale).
        const double scale = own ? amax / 448.0 : k_scale[format.scale == KvScaleKind::layer_head ? h : 0];
        const double absolute = format.k_type == DType::fp8_e4m3 ? scale * 0x1p-10 + 1e-5 : 2e-5;
        ASSERT_NEAR(element(kv, true, slots[r], h, i), expected[i],
                    relative_of(format.k_type) * std::fabs(expected[i]) + absolute);
      }
      for (std::int64_t i = 0; i < v_dim; ++i) {
        const double value = v[(r * kv_heads + h) * v_dim + i];
        ASSERT_NEAR(element(kv, false, slots[r], h, i), value,
                    relative_of(format.v_type) * std::fabs(value) + 1e-3);
      }
    }
  }
}

TEST_P(Cache, EveryFormatAndOrder) {
  for (PageOrder order : {PageOrder::page_first, PageOrder::layer_first}) {
    for (DType type : {DType::f32, DType::bf16, DType::f16}) {
      KvFormat format;
      format.k_type = format.v_type = type;
      check_format(GetParam(), format, order, {false, 20, 0}, false);
    }
    for (KvScaleKind scale : {KvScaleKind::tensor, KvScaleKind::layer_head, KvScaleKind::token_head}) {
      KvFormat format;
      format.k_type = format.v_type = DType::fp8_e4m3;
      format.scale = scale;
      check_format(GetParam(), format, order, {false, 12, 4}, true);
    }
  }
}

TEST_P(Cache, EveryKindOfRope) {
  KvFormat f32;
  f32.k_type = f32.v_type = DType::f32;
  for (const Rope& rope :
       {Rope{false, 20, 0}, Rope{false, 14, 0}, Rope{true, 20, 0}, Rope{true, 8, 12}, Rope{false, 0, 0}}) {
    check_format(GetParam(), f32, PageOrder::page_first, rope, false);
    check_format(GetParam(), f32, PageOrder::page_first, rope, true);
  }
}

// A latent row is one head without V; kv_gather gives it back as float32.
TEST_P(Cache, LatentRowsAreWrittenAndGathered) {
  Rig rig(GetParam());
  for (KvScaleKind scale : {KvScaleKind::none, KvScaleKind::token_head}) {
    KvFormat format;
    format.k_type = format.v_type = scale == KvScaleKind::none ? DType::bf16 : DType::fp8_e4m3;
    format.scale = scale;
    const std::int32_t rows = 23, dim = 24, page_size = 5, pages = 8;
    Arena arena({1, dim, 16, true, -1}, format, page_size, pages, PageOrder::page_first);
    KvView kv = arena.view(0, nullptr, nullptr);
    std::vector<float> row = random_floats(rows * dim, 8), cos_sin = random_floats(rows * 8, 9);
    // One sequence over the pages 3, 1, 6, 2, 5.
    const std::uint32_t table[] = {3, 1, 6, 2, 5};
    std::vector<std::int64_t> slots;
    for (std::int64_t j = 0; j < rows; ++j) slots.push_back(table[j / page_size] * page_size + j % page_size);
    RopeAndKvWrite args;
    args.q = TensorView::heads(row.data(), DType::f32, rows, 0, dim);
    args.k = TensorView::heads(row.data(), DType::f32, rows, 1, dim);
    args.cos_sin = cos_sin.data();
    args.rotary_dim = 8;
    args.k_rope_offset = 16;
    args.interleaved = true;
    args.write_slot = slots.data();
    args.kv = kv;
    rig.ops->rope_and_kv_write(args, *rig.stream);
    const std::int32_t begin[] = {2, 0}, end[] = {20, 0};
    const std::int64_t offsets[] = {1, 0};
    std::vector<float> out(20 * dim, NAN);
    rig.ops->kv_gather({kv, dim, table, 5, 2, begin, end, offsets, out.data()}, *rig.stream);
    rig.stream->synchronize();
    for (std::int64_t i = 0; i < 18; ++i) {
      for (std::int64_t d = 0; d < dim; ++d) {
        EXPECT_EQ(out[(i + 1) * dim + d], static_cast<float>(element(kv, true, slots[i + 2], 0, d)));
        EXPECT_NEAR(out[(i + 1) * dim + d], row[(i + 2) * dim + d],
                    0.063 * std::fabs(row[(i + 2) * dim + d]) + 1e-2);
      }
    }
    EXPECT_TRUE(std::isnan(out[0])) << "written before the offset";
    EXPECT_TRUE(std::isnan(out[19 * dim])) << "written past the end";
  }
}

// The first tokens of a page, K, V and scales, in one task and in terms of Stream::copy: the same bytes
// change, and no others.
TEST_P(Cache, PageCopyTakesTheFirstTokensOfAllLayers) {
  constexpr std::int32_t kPage = 8;
  constexpr std::int32_t kPages = 5;
  for (const DType type : {DType::bf16, DType::fp8_e4m3}) {
    for (const bool latent : {false, true}) {
      for (const PageOrder order : {PageOrder::page_first, PageOrder::layer_first}) {
        KvFormat format;
        format.k_type = format.v_type = type;
        format.scale = type == DType::fp8_e4m3 ? KvScaleKind::token_head : KvScaleKind::none;
        const KvLayerShape shape{latent ? 1 : 3, 24, latent ? 16 : 24, latent};
        Arena arena(shape, format, kPage, kPages, order);
        for (std::size_t b = 0; b < arena.bytes.size(); ++b)
          arena.bytes[b] = static_cast<unsigned char>(b * 31 + b / 251);
        const std::vector<unsigned char> before = arena.bytes;
        std::vector<PageCopyLayer> layers;
        for (int l = 0; l < 2; ++l)
          layers.push_back(
              {arena.view(l, nullptr, nullptr), shape.kv_heads, shape.qk_dim, latent ? 0 : shape.v_dim});
        const PageCopy copy{layers.data(), 2, 3, 1, 5};
        Rig rig(GetParam(), 2);
        rig.ops->page_copy(copy, *rig.stream);
        rig.stream->synchronize();
        const std::vector<unsigned char> once = arena.bytes;
        arena.bytes = before;
        rig.ops->Ops::page_copy(copy, *rig.stream);
        rig.stream->synchronize();
        EXPECT_EQ(arena.bytes, once);
        std::size_t changed = 0;
        for (std::size_t b = 0; b < once.size(); ++b) changed += once[b] != before[b] ? 1 : 0;
        const std::size_t rows = latent ? 24 : 3 * (24 + 24);
        const std::size_t scales = format.scale == KvScaleKind::none ? 0 : latent ? 4 : 3 * 2 * 4;
        EXPECT_LE(changed, 2 * 5 * (rows * dtype_bytes(type) + scales));
        for (const PageCopyLayer& layer : layers) {
          for (std::int64_t t = 0; t < 5; ++t) {
            for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
              EXPECT_EQ(std::memcmp(&element_byte(layer.kv, 1, h, t), &element_byte(layer.kv, 3, h, t),
                                    24 * dtype_bytes(type)),
                        0);
            }
          }
        }
      }
    }
  }
}

// Rows go one after the other: 9 to 6, then 11 to 9, which 9 has left by then. Nothing else changes.
TEST_P(Cache, MoveRowsInTheirOrder) {
  constexpr std::int32_t kPage = 4;
  constexpr std::int32_t kPages = 5;
  const std::vector<std::int64_t> from = {9, 11, 3, 17}, to = {6, 9, 3, 11};
  for (const DType type : {DType::bf16, DType::fp8_e4m3}) {
    for (const bool latent : {false, true}) {
      KvFormat format;
      format.k_type = format.v_type = type;
      format.scale = type == DType::fp8_e4m3 ? KvScaleKind::token_head : KvScaleKind::none;
      const KvLayerShape shape{latent ? 1 : 3, 24, latent ? 16 : 24, latent};
      Arena arena(shape, format, kPage, kPages, PageOrder::page_first);
      for (std::size_t b = 0; b < arena.bytes.size(); ++b)
        arena.bytes[b] = static_cast<unsigned char>(b * 31 + b / 251);
      const std::vector<unsigned char> before = arena.bytes;
      std::vector<PageCopyLayer> layers;
      for (int l = 0; l < 2; ++l)
        layers.push_back(
            {arena.view(l, nullptr, nullptr), shape.kv_heads, shape.qk_dim, latent ? 0 : shape.v_dim});
      // The same in plain words, a byte at a time.
      std::vector<unsigned char> expected = before;
      const auto move = [&](const void* base, const KvStrides& stride, std::int64_t bytes) {
        const auto start = static_cast<const unsigned char*>(base) - arena.bytes.data();
        for (std::size_t i = 0; i < from.size(); ++i) {
          for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
            const auto at = [&](std::int64_t slot) {
              return static_cast<std::size_t>(start + slot / kPage * stride.page + h * stride.head +
                                              slot % kPage * stride.token);
            };
            for (std::int64_t b = 0; b < bytes; ++b)
              expected[at(to[i]) + static_cast<std::size_t>(b)] =
                  expected[at(from[i]) + static_cast<std::size_t>(b)];
          }
        }
      };
      const auto width = static_cast<std::int64_t>(24 * dtype_bytes(type));
      for (const PageCopyLayer& layer : layers) {
        move(layer.kv.k, layer.kv.k_stride, width);
        if (!latent) move(layer.kv.v, layer.kv.v_stride, width);
        if (format.scale == KvScaleKind::none) continue;
        move(layer.kv.k_scale, layer.kv.scale_stride, 4);
        if (!latent) move(layer.kv.v_scale, layer.kv.scale_stride, 4);
      }
      Rig rig(GetParam(), 2);
      rig.ops->move_rows({layers.data(), 2, from.data(), to.data(), static_cast<std::int32_t>(from.size())},
                         *rig.stream);
      rig.stream->synchronize();
      EXPECT_EQ(arena.bytes, expected);
      EXPECT_NE(arena.bytes, before);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Cache, ::testing::ValuesIn(levels()),
                         [](const auto& level) { return std::string(to_string(level.param)); });

}  // namespace
}  // namespace quire::ops::cpu
