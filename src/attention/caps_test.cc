#include "attention/caps.h"

#include <gtest/gtest.h>

#include "attention/backends/reference/backend.h"

namespace quire::attention {
namespace {

constexpr Box plain_box() {
  Box box;
  box.phases = bit(Phase::decode) | bit(Phase::extend);
  box.dims.values[box.dims.count++] = {64, 64};
  box.dims.values[box.dims.count++] = {128, 128};
  box.ratio_max = 8;
  box.q_types = bit(DType::f32);
  box.kv = {.types = bit(DType::bf16), .scales = bit(KvScaleKind::none)};
  box.page = {.kind = PageRule::Kind::multiple, .min = 16, .max = 256, .multiple = 16};
  box.orders = bit(PageOrder::page_first);
  box.sources = bit(KvSource::paged);
  box.masks = bit(MaskKind::causal) | bit(MaskKind::window);
  box.features = kLse;
  return box;
}

constexpr Box latent_box() {
  Box box = plain_box();
  box.dims = {};
  box.dims.values[box.dims.count++] = {576, 512};
  box.page = {.kind = PageRule::Kind::set, .min = 1, .max = 256, .values = IntSet(64)};
  box.features = kLse | kLatent;
  return box;
}

constexpr Box kBoxes[] = {plain_box(), latent_box()};

Backend toy() { return {.name = "toy", .caps = {.boxes = kBoxes}}; }

Problem legal() {
  Problem p;
  p.q_heads = 8;
  p.kv_heads = 2;
  p.qk_dim = p.v_dim = 128;
  p.page_size = 32;
  return p;
}

TEST(Supports, TakesWhatABoxHolds) {
  EXPECT_FALSE(supports(toy(), legal()));
  Problem latent = legal();
  latent.qk_dim = 576, latent.v_dim = 512, latent.kv_heads = 1, latent.page_size = 64,
  latent.features = kLatent;
  EXPECT_FALSE(supports(toy(), latent));
}

TEST(Supports, EachFactClashesByItsOwnName) {
  const auto clash = [](auto change) {
    Problem p = legal();
    change(p);
    const auto reason = supports(toy(), p);
    EXPECT_TRUE(reason);
    EXPECT_FALSE(reason->text.empty());
    EXPECT_FALSE(reason->fix.empty());
    return reason->facts[0];
  };
  EXPECT_EQ(clash([](Problem& p) { p.phase = Phase::verify; }), Fact::phase);
  EXPECT_EQ(clash([](Problem& p) { p.qk_dim = 96; }), Fact::head_dims);
  EXPECT_EQ(clash([](Problem& p) { p.q_heads = 32; }), Fact::head_ratio);
  EXPECT_EQ(clash([](Problem& p) { p.q_heads = 7; }), Fact::head_ratio);
  EXPECT_EQ(clash([](Problem& p) { p.q_type = DType::bf16; }), Fact::q_type);
  EXPECT_EQ(clash([](Problem& p) { p.kv.k_type = DType::f16; }), Fact::kv_format);
  EXPECT_EQ(clash([](Problem& p) { p.kv.scale = KvScaleKind::tensor; }), Fact::kv_scale);
  EXPECT_EQ(clash([](Problem& p) { p.kv.packing = KvPacking::vnni; }), Fact::kv_packing);
  EXPECT_EQ(clash([](Problem& p) { p.page_size = 24; }), Fact::page_size);
  EXPECT_EQ(clash([](Problem& p) { p.order = PageOrder::layer_first; }), Fact::page_order);
  EXPECT_EQ(clash([](Problem& p) { p.source = KvSource::dense; }), Fact::source);
  EXPECT_EQ(clash([](Problem& p) { p.mask = MaskKind::chunked; }), Fact::mask);
  EXPECT_EQ(clash([](Problem& p) { p.features = kSoftcap; }), Fact::softcap);
  EXPECT_EQ(clash([](Problem& p) { p.features = kTree; }), Fact::tree);
  EXPECT_EQ(clash([](Problem& p) { p.features = kSparse; }), Fact::sparse);
}

TEST(Supports, TwoFactsThatNoBoxTakesTogetherAreNamedBoth) {
  Problem p = legal();
  p.qk_dim = 576, p.v_dim = 512;  // takes page 64 only
  const auto reason = supports(toy(), p);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->facts[0], Fact::page_size);
  EXPECT_EQ(reason->facts[1], Fact::head_dims);
  EXPECT_EQ(reason->text, "toy takes page size 64 with head dims 576/512; this call has page size 32");
  EXPECT_EQ(reason->fix, "use --page-size 64");
}

TEST(Supports, NearestPageSizesComeFirst) {
  Problem p = legal();
  p.page_size = 30;
  EXPECT_EQ(nearest_page_sizes(toy(), p), (std::vector<std::int32_t>{32, 16}));
  EXPECT_EQ(supports(toy(), p)->fix, "use --page-size 32 or 16");
  p.page_size = 1000;
  EXPECT_EQ(nearest_page_sizes(toy(), p), (std::vector<std::int32_t>{256}));
}

TEST(Supports, ARowWithoutBoxesRefusesEverything) {
  const Backend empty{.name = "none"};
  EXPECT_TRUE(supports(empty, legal()));
}

TEST(Table, ReferenceIsLastAndNamesAreUnique) {
  for (const auto platform : {platform::Kind::cpu, platform::Kind::cuda}) {
    const auto table = backends(platform);
    ASSERT_FALSE(table.empty());
    EXPECT_EQ(table.back().name, "reference");
    for (const Backend& row : table) {
      EXPECT_EQ(find_backend(table, row.name), &row);
      for (const Box& box : row.caps.boxes) EXPECT_EQ(box.platforms, bit(platform)) << row.name;
    }
    EXPECT_EQ(find_backend(table, "flash"), nullptr);
  }
}

TEST(Supports, WhatABoxNeedsIsAskedOfTheCall) {
  constexpr Box kLatentOnly[] = {{.phases = bit(Phase::decode),
                                  .dims = {{{576, 512}}, 1},
                                  .q_types = bit(DType::bf16),
                                  .kv = {bit(DType::bf16), bit(KvScaleKind::none)},
                                  .page = {PageRule::Kind::any, 1, 256},
                                  .orders = bit(PageOrder::page_first),
                                  .sources = bit(KvSource::paged),
                                  .masks = bit(MaskKind::causal),
                                  .features = kLatent,
                                  .needs = kLatent}};
  const Backend row{"latent_only", "", {.boxes = kLatentOnly}, nullptr};
  Problem p;
  p.q_heads = 16;
  p.kv_heads = 1;
  p.qk_dim = 576;
  p.v_dim = 512;
  p.q_type = DType::bf16;
  p.page_size = 64;
  p.features = kLatent;
  EXPECT_FALSE(supports(row, p));
  p.features = 0;
  const auto reason = supports(row, p);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->facts[0], Fact::latent);
  EXPECT_EQ(reason->text, "latent_only needs latent; this call has no latent");
}

TEST(Contract, PhaseIsDerivedFromTheRowAlone) {
  EXPECT_EQ(phase_of(1, false, 8), Phase::decode);
  EXPECT_EQ(phase_of(1, true, 8), Phase::verify);
  EXPECT_EQ(phase_of(8, false, 8), Phase::verify);
  EXPECT_EQ(phase_of(9, false, 8), Phase::extend);
  EXPECT_EQ(phase_of(2, false, 1), Phase::extend);
  EXPECT_EQ(features_to_string(kSink | kTree), "sink, tree");
  EXPECT_EQ(features_to_string(0), "none");
}

}  // namespace
}  // namespace quire::attention
