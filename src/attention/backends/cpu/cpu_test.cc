#include <gtest/gtest.h>

#include <map>
#include <string>

#include "attention/backends/cpu/world_for_test.h"

namespace quire::attention::cpu {
namespace {

using platform::cpu::Isa;

std::vector<Isa> isas() {
  std::vector<Isa> list{Isa::portable};
  if (platform::cpu::best_isa() >= Isa::avx2) list.push_back(Isa::avx2);
  if (platform::cpu::best_isa() >= Isa::avx512) list.push_back(Isa::avx512);
  return list;
}

Problem problem_of(int q_heads, int kv_heads, int qk_dim, int v_dim, DType type, int page) {
  Problem p;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.qk_dim = qk_dim;
  p.v_dim = v_dim;
  p.kv.k_type = p.kv.v_type = type;
  p.page_size = page;
  p.features = kLse;
  return p;
}

// Relative Frobenius error over all rows and the largest error of lse past its gate.
struct Errors {
  double out = 0.0;
  double lse = 0.0;
};

struct Answer {
  double lse = 0.0;
  std::vector<double> out;
};

std::vector<Answer> answers_of(const World& world, const Problem& p) {
  std::vector<Answer> answers(static_cast<std::size_t>(world.rows() * p.q_heads));
  for (std::int32_t i = 0; i < world.rows() * p.q_heads; ++i) {
    Answer& a = answers[static_cast<std::size_t>(i)];
    a.lse = world.oracle(i / p.q_heads, i % p.q_heads, a.out);
  }
  return answers;
}

Errors errors_of(const World& world, const std::vector<Answer>& answers, const Problem& p, const Outcome& o) {
  double wrong = 0.0, size = 0.0;
  Errors e;
  for (std::int32_t row = 0; row < world.rows(); ++row)
    for (std::int32_t h = 0; h < p.q_heads; ++h) {
      const auto& [lse, expected] = answers[static_cast<std::size_t>(row * p.q_heads + h)];
      const float got = o.lse[static_cast<std::size_t>(row * p.q_heads + h)];
      if (std::isinf(lse)) {
        if (got != kNoKey) e.lse = 1e9;
      } else {
        const double gate = 1e-4 + 0x1p-16 * std::fabs(lse);
        const double off = std::fabs(got - lse) / gate;
        if (!(off <= e.lse)) e.lse = std::isnan(off) ? 1e9 : off;
      }
      for (std::int32_t d = 0; d < p.v_dim; ++d) {
        const double x = o.out[static_cast<std::size_t>((row * p.q_heads + h) * p.v_dim + d)];
        const double off = x - expected[static_cast<std::size_t>(d)];
        wrong += off * off;
        size += expected[static_cast<std::size_t>(d)] * expected[static_cast<std::size_t>(d)];
      }
    }
  e.out = size == 0.0 ? std::sqrt(wrong) : std::sqrt(wrong / size);
  return e;
}

void expect_right(const Spec& spec, const std::string& what) {
  World world(spec);
  const std::vector<Answer> answers = answers_of(world, spec.problem);
  for (Isa isa : isas()) {
    const Outcome o = world.run(isa);
    const Errors e = errors_of(world, answers, spec.problem, o);
    EXPECT_TRUE(e.out <= 2e-6) << what << " " << to_string(isa) << ": error " << e.out;
    EXPECT_LE(e.lse, 1.0) << what << " " << to_string(isa);
    EXPECT_TRUE(o.guard_intact) << what;
    EXPECT_LE(o.used_bytes, o.plan_bytes) << what;
  }
}

TEST(CpuAttention, EveryDimAndRatioInEveryPhase) {
  struct Dims {
    int qk, v;
  };
  const int ratios[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 16};
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  int n = 0;
  for (Dims d : {Dims{16, 16},
                 {32, 32},
                 {48, 48},
                 {64, 64},
                 {80, 80},
                 {96, 96},
                 {112, 112},
                 {128, 128},
                 {192, 128},
                 {256, 256}}) {
    const int ratio = ratios[n++ % 10];
    for (DType type : types) {
      Spec spec;
      spec.problem = problem_of(2 * ratio, 2, d.qk, d.v, type, 16);
      spec.sequences = {
          {1, 1, 700, 0, 0}, {2, 1, 1, 0, 0}, {3, 5, 130, 0, 0}, {4, 37, 100, 0, 0}, {5, 20, 20, 0, 0}};
      expect_right(spec, "dims " + std::to_string(d.qk) + " ratio " + std::to_string(ratio) + " " +
                             std::string(to_string(type)));
    }
  }
}

TEST(CpuAttention, LatentRowsWithManyHeads) {
  for (int heads : {1, 4, 16, 100}) {
    Spec spec;
    spec.problem = problem_of(heads, 1, 576, 512, DType::bf16, 16);
    spec.problem.features |= kLatent;
    spec.sequences = {{1, 1, 600, 0, 0}, {2, 3, 70, 0, 0}};
    expect_right(spec, "latent, heads " + std::to_string(heads));
  }
}

TEST(CpuAttention, EveryElementScalePageAndOrder) {
  for (PageOrder order : {PageOrder::page_first, PageOrder::layer_first})
    for (int page : {1, 7, 16, 64, 256})
      for (DType type : {DType::f32, DType::bf16, DType::f16, DType::fp8_e4m3})
        for (KvScaleKind scale :
             {KvScaleKind::none, KvScaleKind::tensor, KvScaleKind::layer_head, KvScaleKind::token_head}) {
          if ((type == DType::fp8_e4m3) == (scale == KvScaleKind::none)) continue;
          Spec spec;
          spec.problem = problem_of(6, 2, 64, 64, type, page);
          spec.problem.kv.scale = scale;
          spec.problem.order = order;
          spec.sequences = {{1, 1, 530, 0, 0}, {2, 9, 65, 0, 0}};
          expect_right(spec, to_string(spec.problem.kv) + ", page " + std::to_string(page));
        }
}

struct MaskCase {
  MaskKind mask;
  int width;
};
const MaskCase kMasks[] = {{MaskKind::causal, 0},   {MaskKind::window, 1},  {MaskKind::window, 100},
                           {MaskKind::window, 600}, {MaskKind::chunked, 3}, {MaskKind::chunked, 96},
                           {MaskKind::full, 0},     {MaskKind::rows, 0}};

Spec feature_spec(MaskCase m) {
  Spec spec;
  spec.problem = problem_of(6, 2, 32, 32, DType::f32, 16);
  spec.problem.mask = m.mask;
  spec.mask_width = m.width;
  spec.sequences = {
      {1, 1, 1200, 100, 1100}, {2, 40, 700, 5, 513}, {3, 30, 30, 10, 12}, {4, 3, 64, 0, 64}, {5, 2, 0, 0, 9}};
  if (m.mask != MaskKind::rows && m.mask != MaskKind::chunked) spec.sequences.push_back({6, 12, 5, 0, 5});
  return spec;
}

TEST(CpuAttention, EveryMaskWithPartsSinksCapsAndStrayRows) {
  for (MaskCase m : kMasks)
    for (int bits = 0; bits < 8; ++bits) {
      Spec spec = feature_spec(m);
      spec.parts = (bits & 1) != 0;
      spec.sink = (bits & 2) != 0;
      spec.softcap = (bits & 4) != 0 ? 3.0f : 0.0f;
      spec.lead_rows = bits;
      spec.q_size = (bits & 4) != 0 ? 8.0f : 1.0f;
      expect_right(spec, std::string(to_string(m.mask)) + " " + std::to_string(m.width) + " features " +
                             std::to_string(bits));
    }
}

TEST(CpuAttention, TreesOverEveryMask) {
  for (MaskCase m : kMasks) {
    if (m.mask == MaskKind::rows) continue;  // p comes from the tree
    for (int tree : {1, 5, 64})
      for (int q_len : {1, tree}) {
        Spec spec = feature_spec(m);
        spec.tree_rows = tree;
        spec.parts = tree == 5;
        spec.sequences = {{1, q_len, 1200, 100, 1199},
                          {2, q_len, 126, 0, 125},
                          {3, q_len, 64, 0, 64},
                          {4, q_len, 300, 0, 1 << 30}};
        expect_right(spec, std::string(to_string(m.mask)) + " tree " + std::to_string(tree) + " rows " +
                               std::to_string(q_len));
      }
  }
}

TEST(CpuAttention, DenseSource) {
  for (DType type : {DType::f32, DType::fp8_e4m3}) {
    Spec spec;
    spec.problem = problem_of(4, 2, 192, 128, type, 0);
    spec.problem.source = KvSource::dense;
    if (type == DType::fp8_e4m3) spec.problem.kv.scale = KvScaleKind::token_head;
    spec.sequences = {{1, 1, 530, 0, 0}, {2, 9, 65, 0, 0}, {3, 70, 70, 0, 0}};
    expect_right(spec, "dense");
  }
}

TEST(CpuAttention, LargeScoresStayWithinTheGate) {
  Spec spec;
  spec.problem = problem_of(8, 2, 64, 64, DType::f32, 16);
  spec.sequences = {{1, 1, 1000, 0, 0}, {2, 17, 300, 0, 0}};
  spec.q_size = 12.0f;  // scores up to about 50
  expect_right(spec, "large scores");
}

TEST(CpuAttention, StepWithoutSequencesWritesZeros) {
  Spec spec;
  spec.problem = problem_of(2, 1, 16, 16, DType::f32, 16);
  spec.lead_rows = 3;
  spec.sequences = {{1, 0, 0, 0, 0}};
  expect_right(spec, "no rows");
}

// ---- a row's bits depend on its own tokens only ----

using Bits = std::vector<float>;

// Rows of identity 1, by key index: output and lse.
std::map<std::int32_t, Bits> rows_of(const Spec& spec) {
  World world(spec);
  const Outcome o = world.run();
  std::map<std::int32_t, Bits> rows;
  const std::size_t width = static_cast<std::size_t>(spec.problem.q_heads * spec.problem.v_dim);
  const std::size_t heads = static_cast<std::size_t>(spec.problem.q_heads);
  for (std::size_t i = 0; i < spec.sequences.size(); ++i) {
    const SequenceSpec& q = spec.sequences[i];
    if (q.identity != 1) continue;
    for (std::int32_t r = 0; r < q.q_len; ++r) {
      const std::size_t row = static_cast<std::size_t>(world.row_of(static_cast<int>(i), r));
      Bits bits(o.out.begin() + static_cast<std::ptrdiff_t>(row * width),
                o.out.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
      bits.insert(bits.end(), o.lse.begin() + static_cast<std::ptrdiff_t>(row * heads),
                  o.lse.begin() + static_cast<std::ptrdiff_t>((row + 1) * heads));
      rows[q.kv_len - q.q_len + r] = bits;
    }
  }
  return rows;
}

void expect_same(const std::map<std::int32_t, Bits>& whole, const std::map<std::int32_t, Bits>& other,
                 const std::string& what) {
  for (const auto& [p, bits] : other) {
    const auto found = whole.find(p);
    ASSERT_NE(found, whole.end());
    EXPECT_EQ(std::memcmp(found->second.data(), bits.data(), bits.size() * sizeof(float)), 0)
        << what << ", key " << p;
  }
}

void expect_invariant(Spec spec, std::int32_t length) {
  spec.sequences = {{1, length, length, 0, 0}};
  const auto whole = rows_of(spec);
  const std::string name = std::string(to_string(spec.isa)) + " " + std::string(to_string(spec.problem.mask));
  // Decode steps at and around borders, with batch mates before and after.
  for (std::int32_t p : {0, 1, 62, 63, 64, 65, 511, 512, 513, 577, length - 1}) {
    spec.sequences = {{2, 3, 600, 0, 0}, {1, 1, p + 1, 0, 0}, {3, 1, 77, 0, 0}};
    expect_same(whole, rows_of(spec), name + " decode");
  }
  for (std::int32_t chunk : {2, 5, 33, 100}) {
    spec.sequences.clear();
    for (std::int32_t at = std::max(0, length - 12 * chunk); at < length; at += chunk)
      spec.sequences.push_back({1, std::min(chunk, length - at), std::min(at + chunk, length), 0, 0});
    expect_same(whole, rows_of(spec), name + " chunks of " + std::to_string(chunk));
  }
  spec.sequences = {{1, length, length, 0, 0}};
  for (int page : {1, 7, 256}) {
    spec.problem.page_size = page;
    expect_same(whole, rows_of(spec), name + " page " + std::to_string(page));
  }
  for (int threads : {1, 3}) {
    spec.threads = threads;
    spec.backwards = threads == 3;
    expect_same(whole, rows_of(spec), name + " threads " + std::to_string(threads));
    spec.sequences = {{1, 1, length, 0, 0}};
    expect_same(whole, rows_of(spec), name + " decode, threads " + std::to_string(threads));
  }
}

TEST(CpuAttention, BitsDependOnOwnTokensOnly) {
  for (Isa isa : isas())
    for (int ratio : {1, 3, 4, 11})
      for (MaskCase m : {kMasks[0], kMasks[2], kMasks[5]}) {
        Spec spec;
        spec.problem = problem_of(ratio, 1, 80, 80, ratio == 3 ? DType::bf16 : DType::f32, 16);
        spec.problem.mask = m.mask;
        spec.mask_width = m.width;
        spec.isa = isa;
        spec.softcap = ratio == 4 ? 20.0f : 0.0f;
        spec.sink = ratio == 3;
        expect_invariant(spec, 620);
      }
}

TEST(CpuAttention, BitsOfLatentAndScaledRowsToo) {
  for (Isa isa : isas()) {
    Spec spec;
    spec.problem = problem_of(5, 1, 576, 512, DType::bf16, 16);
    spec.problem.features |= kLatent;
    spec.isa = isa;
    expect_invariant(spec, 600);
    spec.problem = problem_of(6, 2, 64, 64, DType::fp8_e4m3, 16);
    spec.problem.kv.scale = KvScaleKind::token_head;
    expect_invariant(spec, 600);
  }
}

// Contexts of several runs of splits, dealt whole, in runs and in single splits.
TEST(CpuAttention, BitsOfLongRowsToo) {
  constexpr std::int32_t kLength = 9 * kSplitKeys + 70;
  for (MaskCase m : {kMasks[0], MaskCase{MaskKind::window, 5 * kSplitKeys}})
    for (int heads : {1, 2, 9}) {
      Spec spec;
      spec.problem = problem_of(heads, heads, 16, 16, DType::bf16, 16);
      spec.problem.mask = m.mask;
      spec.mask_width = m.width;
      spec.threads = 1;
      spec.sequences = {{1, 30, kLength, 0, 0}};
      const auto whole = rows_of(spec);
      for (int threads : {1, 2, 3, 16}) {
        spec.threads = threads;
        const std::string name = std::to_string(heads) + " heads, threads " + std::to_string(threads);
        spec.sequences = {{1, 1, kLength, 0, 0}};
        expect_same(whole, rows_of(spec), name + " alone");
        spec.sequences = {
            {2, 1, 3000, 0, 0}, {1, 3, kLength - 7, 0, 0}, {3, 1, 700, 0, 0}, {1, 1, kLength, 0, 0}};
        expect_same(whole, rows_of(spec), name + " with others");
      }
    }
}

TEST(CpuAttention, LongRowsAreRight) {
  for (int threads : {1, 2, 16})
    for (std::int32_t width : {0, 5 * kSplitKeys}) {
      Spec spec;
      spec.problem = problem_of(6, 3, 32, 32, DType::bf16, 64);
      spec.problem.mask = width > 0 ? MaskKind::window : MaskKind::causal;
      spec.mask_width = width;
      spec.threads = threads;
      spec.sequences = {{1, 1, 9 * kSplitKeys + 70, 0, 0}, {2, 2, 4 * kSplitKeys, 0, 0}};
      expect_right(spec, "threads " + std::to_string(threads) + " window " + std::to_string(width));
    }
}

// A tile's size and a head's neighbours must not matter: one head alone gives what it gives in a group.
TEST(CpuAttention, HeadsOfAGroupDoNotInfluenceEachOther) {
  for (Isa isa : isas()) {
    Spec spec;
    spec.isa = isa;
    spec.problem = problem_of(16, 1, 64, 64, DType::f32, 16);
    spec.sequences = {{1, 1, 900, 0, 0}};
    World many(spec);
    const Outcome all = many.run();
    for (int heads : {1, 2, 3, 8}) {
      spec.problem.q_heads = heads;
      World few(spec);
      const Outcome some = few.run();
      EXPECT_EQ(std::memcmp(all.out.data(), some.out.data(), some.out.size() * sizeof(float)), 0)
          << to_string(isa) << " " << heads;
    }
  }
}

TEST(CpuAttention, KvNanStaysNan) {
  for (Isa isa : isas())
    for (DType type : {DType::f16, DType::bf16, DType::f32}) {
      Spec spec;
      spec.isa = isa;
      spec.problem = problem_of(1, 1, 16, 16, type, 16);
      spec.sequences = {{1, 1, 3, 0, 0}};
      spec.q_size = NAN;
      EXPECT_TRUE(std::isnan(World(spec).run().out[0])) << to_string(isa);
    }
}

TEST(CpuAttention, WorkspaceGrowsWithTheLimitsAndIsUsed) {
  Spec spec;
  spec.problem = problem_of(8, 2, 64, 64, DType::f32, 16);
  spec.sequences = {{1, 1, 5000, 0, 0}, {2, 1, 3000, 0, 0}};
  const Outcome o = World(spec).run();
  EXPECT_GE(static_cast<double>(o.used_bytes), 0.9 * static_cast<double>(o.plan_bytes));
  const auto attention = make_attention(spec.problem, Isa::portable);
  std::int64_t last = 0;
  for (int scale : {1, 2, 4, 8}) {
    const Limits limits{sizeof(Limits), scale, 64 * scale, 64, 1024 * scale, scale};
    const std::int64_t bytes = attention->workspace_bytes(limits);
    EXPECT_GT(bytes, last);
    last = bytes;
  }
  EXPECT_LT(attention->workspace_bytes({sizeof(Limits), 64, 4096, 4096, 1 << 20, 2}), 32ll << 20);
}

}  // namespace
}  // namespace quire::attention::cpu
