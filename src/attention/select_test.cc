#include "attention/select.h"

#include <gtest/gtest.h>

namespace quire::attention {
namespace {

constexpr Box box_of(PageRule page, std::int32_t dim, std::uint32_t phases) {
  Box box;
  box.phases = phases;
  box.dims.values[box.dims.count++] = {dim, dim};
  box.q_types = bit(DType::f32);
  box.kv = {.types = bit(DType::bf16), .scales = bit(KvScaleKind::none)};
  box.page = page;
  box.orders = bit(PageOrder::page_first) | bit(PageOrder::layer_first);
  box.sources = bit(KvSource::paged) | bit(KvSource::dense);
  box.masks = bit(MaskKind::causal);
  return box;
}
constexpr std::uint32_t kDecode = bit(Phase::decode);
constexpr std::uint32_t kAll = bit(Phase::decode) | bit(Phase::verify) | bit(Phase::extend);
constexpr PageRule kPage64{.kind = PageRule::Kind::set, .values = IntSet(64)};
constexpr PageRule kSmall{.kind = PageRule::Kind::any, .min = 1, .max = 32};
constexpr Box kFast[] = {box_of(kPage64, 128, kDecode)};
constexpr Box kSmallPages[] = {box_of(kSmall, 128, kAll)};
constexpr Box kEverything[] = {box_of({}, 128, kAll), box_of({}, 64, kAll)};

const Backend kTable[] = {
    {.name = "fast", .caps = {.boxes = kFast, .determinism = Determinism::run_to_run}},
    {.name = "small",
     .caps = {.boxes = kSmallPages, .determinism = Determinism::batch_invariant, .recommended_page = 16}},
    {.name = "any", .caps = {.boxes = kEverything, .determinism = Determinism::schedule_invariant}},
};

Call call(std::string name, Phase phase, std::int32_t dim = 128) {
  Call c;
  c.name = std::move(name);
  c.layers = 4;
  c.problem.phase = phase;
  c.problem.q_heads = c.problem.kv_heads = 2;
  c.problem.qk_dim = c.problem.v_dim = dim;
  return c;
}
std::vector<Call> both() { return {call("full.decode", Phase::decode), call("full.extend", Phase::extend)}; }

Result<Selection> choose(const std::vector<Call>& calls, const Wish& wish) {
  return select(kTable, calls, wish, PageOrder::page_first);
}
bool says(const Result<Selection>& result, std::string_view text) {
  return result.error().message.find(text) != std::string::npos;
}

TEST(Select, FirstRowThatFitsWinsAndTheOthersSayWhyNot) {
  const auto s = choose({call("full.decode", Phase::decode)}, {});
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->picks[0].backend->name, "fast");
  EXPECT_EQ(s->page_size, 64);
  EXPECT_EQ(s->picks[0].call.problem.page_size, 64);
  ASSERT_EQ(s->picks[0].refused.size(), 1u);
  EXPECT_EQ(s->picks[0].refused[0].row, "small");
  EXPECT_EQ(s->picks[0].able, std::vector<std::string>{"any"});
  EXPECT_NE(explain(*s).find("full.decode (4 layers): fast"), std::string::npos);
}

TEST(Select, RowsWhosePagesExcludeEachOtherAreBothNamed) {
  const auto s = choose(both(), {});  // fast wants 64, small at most 32
  ASSERT_FALSE(s.ok());
  EXPECT_TRUE(says(s, "fast of full.decode"));
  EXPECT_TRUE(says(s, "small of full.extend"));
  EXPECT_EQ(s.error().code, Code::bad_input);
}

TEST(Select, TheUsersPageSizeIsKeptAndDecidesTheRow) {
  Wish wish;
  wish.page_size = 7;
  const auto s = choose(both(), wish);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->picks[0].backend->name, "small");
  EXPECT_EQ(s->page_size, 7);
  EXPECT_EQ(s->page_because, "asked for");
}

TEST(Select, PinsAndTheMoreSpecificOneWins) {
  Wish wish;
  wish.all = "small";
  auto s = choose(both(), wish);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->page_size, 16);  // recommended by small
  EXPECT_EQ(s->picks[1].backend->name, "small");
  wish.prefill = "any";
  s = choose(both(), wish);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->picks[0].backend->name, "small");
  EXPECT_EQ(s->picks[1].backend->name, "any");
  wish.per_call = {{"full.decode", "fast"}};
  s = choose(both(), wish);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->picks[0].backend->name, "fast");
  EXPECT_EQ(s->determinism, Determinism::run_to_run);
}

TEST(Select, APinThatCannotServeListsEveryRowWithItsReason) {
  Wish wish;
  wish.decode = "fast";
  wish.page_size = 16;
  const auto s = choose(both(), wish);
  ASSERT_FALSE(s.ok());
  EXPECT_TRUE(says(s, "fast cannot serve the call full.decode"));
  EXPECT_TRUE(says(s, "fast takes page size 64; this call has page size 16: use --page-size 64"));
  EXPECT_TRUE(says(s, "any: serves it"));
}

TEST(Select, NoRowAtAllListsEveryRow) {
  const auto s = choose({call("odd", Phase::decode, 48)}, {});
  ASSERT_FALSE(s.ok());
  for (const Backend& row : kTable) EXPECT_TRUE(says(s, std::string(row.name) + ": "));
  EXPECT_TRUE(says(s, "head dims 48"));
}

TEST(Select, DeterminismIsAMinimum) {
  Wish wish;
  wish.minimum = Determinism::schedule_invariant;
  const auto s = choose(both(), wish);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->picks[0].backend->name, "any");
  EXPECT_EQ(s->determinism, Determinism::schedule_invariant);
  EXPECT_EQ(s->picks[0].refused[0].reason.facts[0], Fact::determinism);
  wish.all = "small";
  EXPECT_FALSE(choose(both(), wish).ok());
}

TEST(Select, UnknownNamesAreAnsweredWithTheKnownOnes) {
  Wish wish;
  wish.all = "flash";
  EXPECT_TRUE(says(choose(both(), wish), "this build has fast, small, any"));
  wish = {};
  wish.per_call = {{"window.decode", "any"}};
  EXPECT_TRUE(says(choose(both(), wish), "its calls are full.decode, full.extend"));
  wish = {};
  wish.page_size = 512;
  EXPECT_TRUE(says(choose(both(), wish), "--page-size 256"));
  EXPECT_FALSE(select({}, both(), {}, PageOrder::page_first).ok());
}

TEST(Select, DenseCallsDoNotBindThePageSize) {
  std::vector<Call> calls = both();
  calls[1].problem.source = KvSource::dense;
  const auto s = choose(calls, {});
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->picks[0].backend->name, "fast");
  EXPECT_EQ(s->picks[1].backend->name, "small");
  EXPECT_EQ(s->page_size, 64);
}

}  // namespace
}  // namespace quire::attention
