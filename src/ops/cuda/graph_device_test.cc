// A chain of operations recorded and replayed gives the bits of the eager run, again and again: nothing in it
// depends on the host, and kernels that may overlap their launches keep their order.
#include "ops/cuda/testing.h"

namespace quire::ops::cuda {
namespace {

using testing::random_floats;
using testing::Rig;

// A small transformer layer without attention, and sampling at its end.
struct Chain {
  static constexpr std::int64_t kHidden = 512, kInter = 1408, kVocab = 5000, kHeads = 8, kKvHeads = 2,
                                kDim = 64;
  Rig& rig;
  std::int64_t rows;
  TensorView residual, normed, branch, q, k, v, gate, up, logits;
  WeightView wq, wk, wv, wo, wgate, wup, wdown, head;
  float* norm;
  float* cos_sin;
  std::int64_t* slots;
  KvView kv;
  Sample sample;
  std::int32_t* tokens;
  std::vector<float> start;

  Chain(Rig& r, std::int64_t rows_) : rig(r), rows(rows_) {
    const auto act = [&](std::int64_t cols, DType type = DType::bf16) {
      return TensorView::matrix(rig.upload(std::vector<float>(static_cast<std::size_t>(rows * cols), NAN)),
                                type, rows, cols);
    };
    const auto weight = [&](std::int64_t outs, std::int64_t cols) {
      std::vector<std::uint16_t> bits;
      for (float x : random_floats(outs * cols, static_cast<unsigned>(outs + cols), 0.04f))
        bits.push_back(f32_to_bf16(x));
      return WeightView{rig.upload(bits), WeightFormat::bf16, outs, cols, cols * 2};
    };
    residual = act(kHidden, DType::f32);
    normed = act(kHidden), branch = act(kHidden), q = act(kHeads * kDim), k = act(kKvHeads * kDim),
    v = act(kKvHeads * kDim), gate = act(kInter), up = act(kInter), logits = act(kVocab, DType::f32);
    wq = weight(kHeads * kDim, kHidden), wk = weight(kKvHeads * kDim, kHidden),
    wv = weight(kKvHeads * kDim, kHidden), wo = weight(kHidden, kHeads * kDim),
    wgate = weight(kInter, kHidden), wup = weight(kInter, kHidden), wdown = weight(kHidden, kInter),
    head = weight(kVocab, kHidden);
    norm = rig.upload(random_floats(kHidden, 5));
    cos_sin = rig.upload(random_floats(rows * kDim, 6));
    std::vector<std::int64_t> where;
    for (std::int64_t i = 0; i < rows; ++i) where.push_back(16 + i * 3);
    slots = rig.upload(where);
    const KvLayout layout =
        make_kv_layout({{kKvHeads, kDim, kDim, false, -1}}, {.k_type = DType::bf16, .v_type = DType::bf16},
                       16, PageOrder::page_first, 64)
            .value();
    kv = layout.view(
        rig.upload(std::vector<unsigned char>(static_cast<std::size_t>(layout.page_stride() * 64))), 0,
        nullptr, nullptr);
    start = random_floats(rows * kHidden, 7);
    std::vector<SamplingParams> params(static_cast<std::size_t>(rows) + 1);
    std::vector<StepRow> step_rows;
    std::vector<std::int32_t> index;
    for (std::int32_t i = 0; i < rows; ++i) {
      params[static_cast<std::size_t>(i) + 1].temperature = 0.5f * static_cast<float>(i % 3);
      step_rows.push_back({i + 1, 1, i, -1});
      index.push_back(i);
    }
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(rows) + 1);
    sample.state = {rig.upload(zeros), rig.upload(zeros), rig.upload(zeros),
                    rig.upload(std::vector<std::int32_t>(zeros.size() * 8)), 8};
    tokens = rig.upload(std::vector<std::int32_t>(static_cast<std::size_t>(rows), -9));
    sample.logits = logits;
    sample.row_index = rig.upload(index);
    sample.step_rows = rig.upload(step_rows);
    sample.params = rig.upload(params);
    sample.out_token = tokens;
  }

  void reset() {
    rig.stream->copy(residual.data, start.data(), static_cast<std::int64_t>(start.size() * 4));
    rig.stream->synchronize();
  }
  void linear(TensorView x, std::initializer_list<LinearTarget> targets) {
    Linear args;
    args.x = x;
    for (const LinearTarget& target : targets) args.targets[args.target_count++] = target;
    rig.ops->linear(args, *rig.stream);
  }
  void enqueue() {
    platform::Stream& s = *rig.stream;
    rig.ops->rms_norm({residual, {}, norm, 1e-5f, normed}, s);
    for (int layer = 0; layer < 3; ++layer) {
      linear(normed, {{wq, nullptr, q}, {wk, nullptr, k}, {wv, nullptr, v}});
      RopeAndKvWrite rope;
      rope.q = q.split_heads(kHeads);
      rope.k = k.split_heads(kKvHeads);
      rope.v = v.split_heads(kKvHeads);
      rope.cos_sin = cos_sin;
      rope.rotary_dim = kDim;
      rope.write_slot = slots;
      rope.kv = kv;
      rig.ops->rope_and_kv_write(rope, s);
      linear(q, {{wo, nullptr, branch}});
      rig.ops->rms_norm({residual, branch, norm, 1e-5f, normed}, s);
      linear(normed, {{wgate, nullptr, gate}, {wup, nullptr, up}});
      rig.ops->gated_activation({Activation::silu, 0.0f, gate, up, gate}, s);
      linear(gate, {{wdown, nullptr, branch}});
      rig.ops->rms_norm({residual, branch, norm, 1e-5f, normed}, s);
    }
    linear(normed, {{head, nullptr, logits}});
    rig.ops->sample(sample, s);
  }
  std::vector<float> result() {
    std::vector<float> all = rig.read(logits, static_cast<std::size_t>(rows * kVocab));
    for (std::int32_t token : rig.download(tokens, static_cast<std::size_t>(rows)))
      all.push_back(static_cast<float>(token));
    return all;
  }
};

TEST(GraphDevice, ReplayEqualsTheEagerRun) {
  Rig rig;
  for (std::int64_t rows : {1, 8, 24}) {
    Chain chain(rig, rows);
    chain.reset();
    chain.enqueue();
    const std::vector<float> eager = chain.result();
    for (float x : eager) ASSERT_TRUE(std::isfinite(x));
    rig.stream->begin_capture();
    chain.enqueue();
    const std::unique_ptr<platform::Graph> graph = rig.stream->end_capture();
    for (int i = 0; i < 20; ++i) {
      chain.reset();
      rig.stream->launch(*graph);
      EXPECT_EQ(chain.result(), eager) << rows << " rows, replay " << i;
    }
    rig.kept.clear();
  }
}

}  // namespace
}  // namespace quire::ops::cuda
