#include "tensor/kv_format.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

KvFormat plain(DType type) {
  KvFormat format;
  format.k_type = format.v_type = type;
  return format;
}

KvFormat fp8(KvScaleKind scale) {
  KvFormat format = plain(DType::fp8_e4m3);
  format.scale = scale;
  return format;
}

KvLayout layout_of(const std::vector<KvLayerShape>& layers, const KvFormat& format, int page_size,
                   PageOrder order = PageOrder::page_first, std::int64_t pages = 0) {
  Result<KvLayout> layout = make_kv_layout(layers, format, page_size, order, pages);
  EXPECT_TRUE(layout.ok()) << layout.error().message;
  return *layout;
}

// Claims [begin, begin + bytes) of one arena; fails when a byte is claimed twice or lies outside.
class Claims {
 public:
  explicit Claims(std::int64_t bytes) : taken_(static_cast<std::size_t>(bytes)) {}
  void claim(std::int64_t begin, std::int64_t bytes) {
    ASSERT_GE(begin, 0);
    ASSERT_LE(begin + bytes, static_cast<std::int64_t>(taken_.size()));
    for (std::int64_t i = begin; i < begin + bytes; ++i) {
      ASSERT_FALSE(taken_[static_cast<std::size_t>(i)]) << "byte " << i << " has two owners";
      taken_[static_cast<std::size_t>(i)] = true;
    }
  }

 private:
  std::vector<bool> taken_;
};

void claim_layer(Claims& claims, char* arena, const KvLayout& layout, int layer, std::int64_t pages) {
  const KvView view = layout.view(arena, layer, nullptr, nullptr);
  const KvLayerShape& shape = layout.layers()[static_cast<std::size_t>(layer)];
  const auto offset = [arena](const void* pointer) { return static_cast<const char*>(pointer) - arena; };
  const auto claim_all = [&](const void* base, const KvStrides& stride, std::int64_t bytes) {
    for (std::int64_t page = 0; page < pages; ++page) {
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        for (std::int64_t token = 0; token < layout.page_size(); ++token) {
          claims.claim(offset(base) + page * stride.page + head * stride.head + token * stride.token, bytes);
        }
      }
    }
  };
  const auto size = static_cast<std::int64_t>(dtype_bytes(layout.format().k_type));
  claim_all(view.k, view.k_stride, shape.qk_dim * size);
  if (!shape.latent) claim_all(view.v, view.v_stride, shape.v_dim * size);
  if (layout.format().scale == KvScaleKind::token_head) {
    claim_all(view.k_scale, view.scale_stride, 4);
    if (!shape.latent) claim_all(view.v_scale, view.scale_stride, 4);
  }
}

TEST(KvLayout, NoTwoElementsShareAByte) {
  const std::vector<KvLayerShape> layers = {{2, 16, 16}, {1, 24, 12}, {1, 40, 32, true}};
  const std::int64_t pages = 3;
  std::vector<char> arena(1 << 20);
  for (const int page_size : {1, 2, 7, 16}) {
    for (const KvFormat& format : {plain(DType::f32), plain(DType::bf16), fp8(KvScaleKind::tensor),
                                   fp8(KvScaleKind::layer_head), fp8(KvScaleKind::token_head)}) {
      for (const PageOrder order : {PageOrder::page_first, PageOrder::layer_first}) {
        const KvLayout layout = layout_of(layers, format, page_size, order, pages);
        // layer_first aligns each plane to a line; page_first stays within its strides.
        Claims claims(pages * layout.page_stride() + (order == PageOrder::layer_first ? 12 * 64 : 0));
        for (int layer = 0; layer < 3; ++layer) claim_layer(claims, arena.data(), layout, layer, pages);
      }
    }
  }
}

TEST(KvLayout, BytesPerTokenAreExact) {
  const std::vector<KvLayerShape> smol(30, KvLayerShape{3, 64, 64});
  EXPECT_EQ(layout_of(smol, plain(DType::bf16), 64).bytes_per_token(), 30 * 3 * 64 * 2 * 2);
  EXPECT_EQ(layout_of(smol, plain(DType::bf16), 1).page_stride(), 30 * 3 * 64 * 2 * 2);
  EXPECT_EQ(layout_of(smol, fp8(KvScaleKind::token_head), 16).bytes_per_token(), 30 * 3 * 2 * (64 + 4));
  const std::vector<KvLayerShape> latent(2, KvLayerShape{1, 576, 512, true});
  EXPECT_EQ(layout_of(latent, plain(DType::bf16), 64).bytes_per_token(), 2 * 576 * 2);
}

TEST(KvLayout, StridePaddingCostsAtMostOnePercent) {
  for (const int dim : {16, 32, 64, 80, 96, 112, 128, 256}) {
    for (const int page_size : {1, 7, 16, 64, 256}) {
      for (const KvFormat& format : {plain(DType::f32), plain(DType::bf16), fp8(KvScaleKind::token_head)}) {
        const KvLayout layout = layout_of({{1, dim, dim}}, format, page_size);
        EXPECT_LE((layout.page_stride() - layout.page_bytes()) * 100, layout.page_bytes());
        EXPECT_EQ(layout.page_stride() % 4, 0);
      }
    }
  }
}

TEST(KvLayout, RowsOfALineAreAlignedToLines) {
  const KvLayout layout = layout_of({{2, 64, 128}, {1, 32, 32}}, plain(DType::bf16), 7);
  for (int layer = 0; layer < 2; ++layer) {
    const KvView view = layout.view(nullptr, layer, nullptr, nullptr);
    for (const std::int64_t bytes :
         {reinterpret_cast<std::int64_t>(view.k), reinterpret_cast<std::int64_t>(view.v), view.k_stride.page,
          view.v_stride.token}) {
      EXPECT_EQ(bytes % 64, 0);
    }
  }
}

TEST(KvLayout, SharedLayersAndLatentAlias) {
  const KvLayout layout = layout_of({{1, 64, 64}, {1, 64, 64, false, 0}}, plain(DType::f32), 4);
  EXPECT_EQ(layout.bytes_per_token(), 512);
  std::vector<char> arena(4096);
  EXPECT_EQ(layout.view(arena.data(), 1, nullptr, nullptr).k,
            layout.view(arena.data(), 0, nullptr, nullptr).k);
  const KvLayout latent = layout_of({{1, 576, 512, true}}, fp8(KvScaleKind::token_head), 4);
  const KvView view = latent.view(arena.data(), 0, nullptr, nullptr);
  EXPECT_EQ(view.k, view.v);
  EXPECT_EQ(view.k_scale, view.v_scale);
  EXPECT_EQ(view.v_stride.token, 576);
}

TEST(KvLayout, PaddedStrideMovesOnlyPages) {
  const KvLayout layout = layout_of({{2, 64, 64}}, plain(DType::f32), 4);
  const KvLayout padded = layout.padded_to(layout.page_stride() + 128);
  std::vector<char> arena(16);
  EXPECT_EQ(padded.view(arena.data(), 0, nullptr, nullptr).k_stride.page, layout.page_stride() + 128);
  EXPECT_EQ(padded.bytes_per_token(), layout.bytes_per_token());
}

TEST(KvLayout, SectionsGiveTheRowLength) {
  KvFormat format = fp8(KvScaleKind::block);
  format.section_count = 3;
  format.sections = {{{DType::fp8_e4m3, 512}, {DType::f32, 4}, {DType::bf16, 64}, {}}};
  EXPECT_EQ(layout_of({{1, 576, 512, true}}, format, 64).bytes_per_token(), 656);
  EXPECT_EQ(to_string(format), "512 x fp8_e4m3 | 4 x f32 | 64 x bf16 (per block)");
}

TEST(KvLayout, RefusesWithTheNearestChange) {
  const std::vector<KvLayerShape> one = {{1, 64, 64}};
  const auto message = [](const std::vector<KvLayerShape>& layers, const KvFormat& format, int page_size) {
    return make_kv_layout(layers, format, page_size, PageOrder::page_first, 0).error().message;
  };
  EXPECT_NE(message(one, plain(DType::bf16), 0).find("page size 0"), std::string::npos);
  EXPECT_NE(message(one, plain(DType::i32), 1).find("use f32, bf16"), std::string::npos);
  EXPECT_NE(message(one, fp8(KvScaleKind::none), 1).find("use tensor"), std::string::npos);
  KvFormat scaled = plain(DType::bf16);
  scaled.scale = KvScaleKind::tensor;
  EXPECT_NE(message(one, scaled, 1).find("use none"), std::string::npos);
  EXPECT_NE(message({}, plain(DType::f32), 1).find("without a layer"), std::string::npos);
  EXPECT_NE(message({{1 << 20, 64, 64}}, plain(DType::f32), 1).find("1..65536"), std::string::npos);
  EXPECT_NE(
      message(std::vector<KvLayerShape>(9, {65536, 65536, 65536}), plain(DType::f32), 65536).find("smaller"),
      std::string::npos);
  EXPECT_NE(message({{1, 64, 64, false, 0}}, plain(DType::f32), 1).find("keeps none"), std::string::npos);
  EXPECT_NE(message({{1, 64, 64}, {2, 64, 64, false, 0}}, plain(DType::f32), 1).find("differs"),
            std::string::npos);
  KvFormat entries = plain(DType::f32);
  entries.tokens_per_entry = 4;
  EXPECT_NE(message(one, entries, 6).find("multiple"), std::string::npos);
  EXPECT_FALSE(make_kv_layout(one, plain(DType::f32), 1, PageOrder::layer_first, 0).ok());
}

TEST(KvFormat, EqualityAndNames) {
  EXPECT_EQ(plain(DType::bf16), plain(DType::bf16));
  EXPECT_FALSE(fp8(KvScaleKind::tensor) == fp8(KvScaleKind::token_head));
  EXPECT_EQ(to_string(plain(DType::bf16)), "bf16");
  EXPECT_EQ(to_string(fp8(KvScaleKind::token_head)), "fp8_e4m3 (per token and head)");
  KvFormat mixed = plain(DType::f16);
  mixed.v_type = DType::f32;
  EXPECT_EQ(to_string(mixed), "f16/f32");
  EXPECT_EQ(to_string(KvScaleKind::layer_head), "layer_head");
  EXPECT_EQ(to_string(PageOrder::layer_first), "layer_first");
}

}  // namespace
}  // namespace quire
