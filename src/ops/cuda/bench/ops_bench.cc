// quire_ops_bench: times the operations of a CUDA device by replaying graphs of them.
//
//   quire_ops_bench [linear|fp8|chain|copy|step|sample|all] [ROWS]     all by default; one table row per case
//
// ROWS: only this number of activation rows. Linears run over weights that are rotated so that no pass finds
// them in the L2 cache, some forty to a replay, whose start costs about 8 us; a row names the rate at which
// weights were read, or the arithmetic rate, whichever says more. What shares an input lies side by side, as
// in a model. `fp8` (fp8_bench.cc) puts products of fp8 weights beside those of bf16: by activations in bf16,
// by rounded ones with the rounding, and by those that are rounded already. `step` is a Llama-3.1-8B decode
// step without attention: every launch of 32 layers, head and sampling.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/bench/bench.h"

namespace quire::ops::cuda {
namespace {

struct Shape {
  const char* name;
  std::int64_t cols;
  std::vector<std::int64_t> outs;
};

void bench_linears(Bench& b) {
  const std::vector<Shape> shapes = {{"q,k,v", kHidden, {kQ, kKv, kKv}},     {"o", kQ, {kHidden}},
                                     {"gate,up", kHidden, {kInter, kInter}}, {"down", kInter, {kHidden}},
                                     {"14336x4096", kHidden, {kInter}},      {"lm_head", kHidden, {kVocab}}};
  fmt::print("{:<12} {:>6} {:>10} {:>9} {:>9}\n", "linear", "rows", "us", "GB/s", "TFLOP/s");
  for (const Shape& shape : shapes) {
    std::int64_t outs = 0;
    for (std::int64_t n : shape.outs) outs += n;
    const std::int64_t bytes = outs * shape.cols * 2;
    const int copies = static_cast<int>(std::clamp<std::int64_t>((400 << 20) / bytes + 1, 2, 12));
    std::vector<Linear> calls(static_cast<std::size_t>(copies));
    for (Linear& call : calls) {
      const WeightView whole = b.weight(outs, shape.cols);
      std::int64_t first = 0;
      for (const std::int64_t n : shape.outs) {
        WeightView part = whole;
        part.data = static_cast<const char*>(whole.data) + first * whole.row_bytes;
        part.rows = n;
        call.targets[call.target_count++].weight = part;
        first += n;
      }
    }
    for (std::int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 2048, 8192}) {
      if ((outs == kVocab && rows > 256) || !b.wanted(rows)) continue;
      const std::size_t mark = b.kept.size();
      const TensorView x = b.activations(rows, shape.cols);
      const TensorView y = b.activations(rows, outs, outs == kVocab ? DType::f32 : DType::bf16);
      for (Linear& call : calls) {
        std::int64_t first = 0;
        for (int t = 0; t < call.target_count; ++t) {
          call.targets[t].y = y.cols_slice(first, call.targets[t].weight.rows);
          first += call.targets[t].weight.rows;
        }
      }
      const int passes = rows > 256 ? 1 : std::max(1, 40 / copies);
      const double us = b.time(passes, rows > 256 ? 3 : 9, [&] {
        for (Linear& call : calls) {
          call.x = x;
          b.ops->linear(call, *b.stream);
        }
      }) / copies;
      fmt::print("{:<12} {:>6} {:>10.2f} {:>9.0f} {:>9.1f}\n", shape.name, rows, us,
                 static_cast<double>(bytes) / us * 1e-3,
                 2.0 * static_cast<double>(rows * outs * shape.cols) / us * 1e-6);
      b.kept.resize(mark);
    }
    b.kept.clear();
  }
}

// The parts of a decode step between the products, each alone.
void bench_chain(Bench& b) {
  fmt::print("{:<28} {:>6} {:>10}\n", "small operations", "rows", "us");
  for (std::int64_t rows : {1, 64, 8192}) {
    if (!b.wanted(rows)) continue;
    const TensorView residual = b.activations(rows, kHidden, DType::f32),
                     branch = b.activations(rows, kHidden), normed = b.activations(rows, kHidden),
                     gate_up = b.activations(rows, 2 * kInter), gate = gate_up.cols_slice(0, kInter),
                     up = gate_up.cols_slice(kInter, kInter), qkv = b.activations(rows, kQ + 2 * kKv),
                     q = qkv.cols_slice(0, kQ), k = qkv.cols_slice(kQ, kKv),
                     v = qkv.cols_slice(kQ + kKv, kKv);
    auto* norm = static_cast<float*>(b.activations(1, kHidden, DType::f32).data);
    auto* angles = static_cast<float*>(b.activations(rows, 128, DType::f32).data);
    b.kept.push_back(b.memory(rows * 8));
    std::vector<std::int64_t> slots(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(64 + i);
    auto* slot = b.kept.back()->as<std::int64_t>();
    b.stream->copy(slot, slots.data(), rows * 8);
    b.stream->synchronize();
    const auto layout =
        make_kv_layout({{8, 128, 128, false, -1}}, KvFormat{}, 64, PageOrder::page_first, 200).value();
    b.kept.push_back(b.memory(layout.page_stride() * 200));
    RopeAndKvWrite rope;
    rope.q = q.split_heads(32);
    rope.k = k.split_heads(8);
    rope.v = v.split_heads(8);
    rope.cos_sin = angles;
    rope.rotary_dim = 128;
    rope.write_slot = slot;
    rope.kv = layout.view(b.kept.back()->data(), 0, nullptr, nullptr);
    const int inner = rows > 64 ? 4 : 50;
    const auto row = [&](const char* name, double us) {
      fmt::print("{:<28} {:>6} {:>10.2f}\n", name, rows, us);
    };
    row("rms_norm with add", b.time(inner, 9, [&] {
      b.ops->rms_norm({residual, branch, norm, 1e-5f, normed}, *b.stream);
    }));
    row("rope and KV write", b.time(inner, 9, [&] { b.ops->rope_and_kv_write(rope, *b.stream); }));
    row("gated activation", b.time(inner, 9, [&] {
      b.ops->gated_activation({Activation::silu, 0.0f, gate, up, gate}, *b.stream);
    }));
    b.kept.clear();
  }
}

// Pages of a group of 32 layers with 8 heads of 128 in bf16, copies one after the other.
void bench_copy(Bench& b) {
  constexpr std::int32_t kPage = 256, kPages = 64, kLayers = 32;
  fmt::print("{:<28} {:>6} {:>10}\n", "page copy of 32 layers", "tokens", "us");
  const std::vector<KvLayerShape> shapes(kLayers, KvLayerShape{8, 128, 128, false, -1});
  const auto layout = make_kv_layout(shapes, KvFormat{}, kPage, PageOrder::page_first, kPages).value();
  b.kept.push_back(b.memory(layout.page_stride() * kPages));
  b.stream->fill(b.kept.back()->data(), 1, layout.page_stride() * kPages);
  std::vector<PageCopyLayer> layers;
  for (int l = 0; l < kLayers; ++l)
    layers.push_back({layout.view(b.kept.back()->data(), l, nullptr, nullptr), 8, 128, 128});
  for (std::int32_t tokens = 1; tokens <= kPage; tokens *= 4) {
    std::uint32_t at = 0;
    const double us = b.time(20, 9, [&] {
      ++at;
      b.ops->page_copy({layers.data(), kLayers, at * 7 % kPages, (at * 7 + 3) % kPages, tokens}, *b.stream);
    });
    fmt::print("{:<28} {:>6} {:>10.2f}\n", "in one launch", tokens, us);
  }
  b.kept.clear();
}

struct SampleSet {
  Sample args;
  std::vector<SamplingParams> params;
};

// Sampling of `rows` rows of random logits; `params` for all of them.
Sample sampling(Bench& b, std::int64_t rows, const SamplingParams& params) {
  const auto ints = [&](std::int64_t count, bool counting) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; counting && i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
    b.kept.push_back(b.memory(count * 4));
    b.stream->copy(b.kept.back()->data(), values.data(), count * 4);
    b.stream->synchronize();
    return b.kept.back()->as<std::int32_t>();
  };
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(static_cast<std::size_t>(rows * kVocab));
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = i < static_cast<std::size_t>(kVocab) ? normal(random) : logits[i - kVocab];
  b.kept.push_back(b.memory(rows * kVocab * 4));
  void* device_logits = b.kept.back()->data();
  b.stream->copy(device_logits, logits.data(), rows * kVocab * 4);
  std::vector<SamplingParams> all(static_cast<std::size_t>(rows) + 1, params);
  b.kept.push_back(b.memory(static_cast<std::int64_t>(all.size() * sizeof(SamplingParams))));
  auto* device_params = b.kept.back()->as<SamplingParams>();
  b.stream->copy(device_params, all.data(), b.kept.back()->bytes());
  std::vector<StepRow> step_rows;
  for (std::int32_t i = 0; i < rows; ++i) step_rows.push_back({i + 1, 1, i, -1});
  b.kept.push_back(b.memory(static_cast<std::int64_t>(step_rows.size() * sizeof(StepRow))));
  auto* device_rows = b.kept.back()->as<StepRow>();
  b.stream->copy(device_rows, step_rows.data(), b.kept.back()->bytes());
  b.stream->synchronize();
  Sample s;
  s.state = {ints(rows + 1, false), ints(rows + 1, false), ints(rows + 1, false),
             ints((rows + 1) * 16, false), 16};
  s.logits = TensorView::matrix(device_logits, DType::f32, rows, kVocab);
  s.row_index = ints(rows, true);
  s.step_rows = device_rows;
  s.params = device_params;
  s.out_token = ints(rows, false);
  return s;
}

void bench_sample(Bench& b) {
  fmt::print("{:<36} {:>6} {:>10}\n", "sampling of 128,256", "rows", "us");
  struct Kind {
    const char* name;
    SamplingParams params;
  };
  std::vector<Kind> kinds = {{"greedy", {}},
                             {"temperature", {1.0f}},
                             {"top-k 50", {1.0f, 50}},
                             {"top-p 0.9", {1.0f, 0, 0.9f}},
                             {"top-k 50, top-p 0.9, min-p 0.05", {1.0f, 50, 0.9f, 0.05f}}};
  for (const Kind& kind : kinds) {
    for (std::int64_t rows : {1, 64, 256}) {
      if (!b.wanted(rows)) continue;
      const Sample s = sampling(b, rows, kind.params);
      fmt::print("{:<36} {:>6} {:>10.2f}\n", kind.name, rows,
                 b.time(10, 9, [&] { b.ops->sample(s, *b.stream); }));
      b.kept.clear();
    }
  }
}

// Every launch of a decode step of Llama-3.1-8B but attention's.
void bench_step(Bench& b) {
  fmt::print("{:<36} {:>6} {:>10}\n", "decode step without attention", "rows", "us");
  constexpr int kLayers = 32;
  struct Layer {
    WeightView q, k, v, o, gate, up, down;
  };
  std::vector<Layer> layers;
  for (int i = 0; i < kLayers; ++i) {
    const auto qkv = b.stacked({kQ, kKv, kKv}, kHidden), gate_up = b.stacked({kInter, kInter}, kHidden);
    layers.push_back(
        {qkv[0], qkv[1], qkv[2], b.weight(kHidden, kQ), gate_up[0], gate_up[1], b.weight(kHidden, kInter)});
  }
  const WeightView head = b.weight(kVocab, kHidden);
  const std::size_t mark = b.kept.size();
  for (std::int64_t rows : {1, 4, 8, 16, 32, 64, 128, 256}) {
    if (!b.wanted(rows)) continue;
    const TensorView residual = b.activations(rows, kHidden, DType::f32),
                     branch = b.activations(rows, kHidden), normed = b.activations(rows, kHidden),
                     gate_up = b.activations(rows, 2 * kInter), gate = gate_up.cols_slice(0, kInter),
                     up = gate_up.cols_slice(kInter, kInter), qkv = b.activations(rows, kQ + 2 * kKv),
                     q = qkv.cols_slice(0, kQ), k = qkv.cols_slice(kQ, kKv),
                     v = qkv.cols_slice(kQ + kKv, kKv), logits = b.activations(rows, kVocab, DType::f32);
    auto* norm = static_cast<float*>(b.activations(1, kHidden, DType::f32).data);
    RopeAndKvWrite rope;
    rope.q = q.split_heads(32);
    rope.k = k.split_heads(8);
    rope.v = v.split_heads(8);
    rope.cos_sin = static_cast<float*>(b.activations(rows, 128, DType::f32).data);
    rope.rotary_dim = 128;
    rope.write_slot = static_cast<std::int64_t*>(b.activations(rows, 2, DType::f32).data);
    const auto layout =
        make_kv_layout({{8, 128, 128, false, -1}}, KvFormat{}, 64, PageOrder::page_first, 4).value();
    b.kept.push_back(b.memory(layout.page_stride() * 4));
    rope.kv = layout.view(b.kept.back()->data(), 0, nullptr, nullptr);
    Sample sample = sampling(b, rows, {});
    sample.logits = logits;
    const auto linear = [&](TensorView x, std::initializer_list<LinearTarget> targets) {
      Linear args;
      args.x = x;
      for (const LinearTarget& target : targets) args.targets[args.target_count++] = target;
      b.ops->linear(args, *b.stream);
    };
    const double us = b.time(1, 9, [&] {
      b.ops->rms_norm({residual, {}, norm, 1e-5f, normed}, *b.stream);
      for (const Layer& w : layers) {
        linear(normed, {{w.q, nullptr, q}, {w.k, nullptr, k}, {w.v, nullptr, v}});
        b.ops->rope_and_kv_write(rope, *b.stream);
        linear(q, {{w.o, nullptr, branch}});
        b.ops->rms_norm({residual, branch, norm, 1e-5f, normed}, *b.stream);
        linear(normed, {{w.gate, nullptr, gate}, {w.up, nullptr, up}});
        b.ops->gated_activation({Activation::silu, 0.0f, gate, up, gate}, *b.stream);
        linear(gate, {{w.down, nullptr, branch}});
        b.ops->rms_norm({residual, branch, norm, 1e-5f, normed}, *b.stream);
      }
      linear(normed, {{head, nullptr, logits}});
      b.ops->sample(sample, *b.stream);
    });
    fmt::print("{:<36} {:>6} {:>10.1f}  {:.0f} GB/s of weights\n", "32 layers, head, greedy", rows, us,
               15.0e9 / us * 1e-3);
    b.kept.resize(mark);
  }
}

int run(const std::string& what, std::int64_t only_rows) {
  if (auto opened = platform::open_device("cuda", platform::ThreadPlan{}); !opened.ok()) {
    fmt::print(stderr, "quire_ops_bench needs a device: {}\n", opened.error().message);
    return 77;
  }
  Bench bench;
  bench.only_rows = only_rows;
  fmt::print("{}, {}\n", bench.device->info().name, bench.ops->name());
  const bool all = what == "all";
  if (all || what == "linear") bench_linears(bench);
  if (all || what == "fp8") bench_fp8(bench);
  if (all || what == "chain") bench_chain(bench);
  if (all || what == "copy") bench_copy(bench);
  if (all || what == "sample") bench_sample(bench);
  if (all || what == "step") bench_step(bench);
  return 0;
}

}  // namespace
}  // namespace quire::ops::cuda

int main(int argc, char** argv) {
  return quire::ops::cuda::run(argc > 1 ? argv[1] : "all", argc > 2 ? std::atoll(argv[2]) : 0);
}
