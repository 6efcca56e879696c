// quire_ops_bench: times the operations of a CUDA device by replaying graphs of them.
//
//   quire_ops_bench [linear|fp8|chain|copy|step|sample|all] [ROWS]     all by default; one table row per case
//
// ROWS: only this number of activation rows. Linears run over weights that are rotated so that no pass finds
// them in the L2 cache, some forty to a replay, whose start costs about 8 us; a row names the rate at which
// weights were read, or the arithmetic rate, whichever says more. What shares an input lies side by side, as
// in a model. `fp8` puts products of fp8 weights, by activations as they are and by rounded ones (the
// rounding included), beside those of bf16. `step` is a Llama-3.1-8B decode step without attention: every
// launch of 32 layers, head and sampling.
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/quantile.h"
#include "ops/cuda/round_rows.h"
#include "ops/cuda_entry.h"
#include "platform/cuda/stream.h"
#include "platform/platform.h"

namespace quire::ops::cuda {
namespace {

constexpr std::int64_t kHidden = 4096, kInter = 14336, kVocab = 128256, kQ = 4096, kKv = 1024;
constexpr std::int64_t kMostRows = 8192;

struct Bench {
  Bench() {
    device = std::move(platform::open_device("cuda", platform::ThreadPlan{}).value());
    stream = device->make_stream();
    ops = make_cuda_ops(*device);
    limits.max_rows = kMostRows;
    limits.max_cols = kInter;
    limits.max_hidden = kHidden;
    limits.max_logit_rows = 256;
    limits.vocab = kVocab;
    workspace = memory(ops->workspace_bytes(limits));
    ops->set_workspace(workspace->data(), workspace->bytes(), limits);
    // One megabyte of random bf16 values, repeated: products of zeros would be faster than real ones.
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.5f);
    pattern.resize(1 << 19);
    for (std::uint16_t& bits : pattern) bits = f32_to_bf16(normal(random));
    fp8_pattern.resize(1 << 20);
    for (std::uint8_t& bits : fp8_pattern) bits = f32_to_fp8_e4m3(normal(random) * 100.0f);
  }
  std::unique_ptr<platform::Buffer> memory(std::int64_t bytes) {
    return std::move(device->allocate(bytes, "bench").value());
  }
  // So many bytes of a pattern over and over, which live as long as the bench.
  void* repeated(const void* from, std::int64_t piece, std::int64_t bytes) {
    auto buffer = memory(bytes);
    char* at = buffer->as<char>();
    stream->copy(at, from, std::min(piece, bytes));
    for (std::int64_t done = piece; done < bytes; done *= 2)
      stream->copy(at + done, at, std::min(done, bytes - done));
    stream->synchronize();
    kept.push_back(std::move(buffer));
    return at;
  }
  void* random_values(std::int64_t count) {  // bf16
    return repeated(pattern.data(), static_cast<std::int64_t>(pattern.size()) * 2, count * 2);
  }
  TensorView activations(std::int64_t rows, std::int64_t cols, DType type = DType::bf16) {
    if (type == DType::bf16) return TensorView::matrix(random_values(rows * cols), type, rows, cols);
    kept.push_back(memory(rows * cols * 4));
    stream->fill(kept.back()->data(), 0, rows * cols * 4);
    return TensorView::matrix(kept.back()->data(), type, rows, cols);
  }
  WeightView weight(std::int64_t rows, std::int64_t cols, WeightFormat format = WeightFormat::bf16) {
    const std::int64_t bytes = weight_row_bytes(format, cols);
    return {random_values(rows * bytes / 2), format, rows, cols, bytes};
  }
  WeightView fp8_weight(std::int64_t rows, std::int64_t cols) {
    const std::vector<float> scale(static_cast<std::size_t>(rows), 0.005f);
    const void* scales = repeated(scale.data(), rows * 4, rows * 4);
    const void* values =
        repeated(fp8_pattern.data(), static_cast<std::int64_t>(fp8_pattern.size()), rows * cols);
    return {values, WeightFormat::fp8_e4m3, rows, cols, cols, 1, 0, static_cast<const float*>(scales)};
  }
  template <class T>
  T* memory_of(std::int64_t count) {
    kept.push_back(memory(count * static_cast<std::int64_t>(sizeof(T))));
    return kept.back()->as<T>();
  }
  bool wanted(std::int64_t rows) const { return only_rows == 0 || rows == only_rows; }
  // Parts of one matrix, by rows.
  std::vector<WeightView> stacked(std::initializer_list<std::int64_t> rows, std::int64_t cols) {
    std::int64_t all = 0;
    for (std::int64_t n : rows) all += n;
    const WeightView whole = weight(all, cols);
    std::vector<WeightView> parts;
    std::int64_t first = 0;
    for (std::int64_t n : rows) {
      parts.push_back({static_cast<const char*>(whole.data) + first * whole.row_bytes, whole.format, n, cols,
                       whole.row_bytes});
      first += n;
    }
    return parts;
  }
  // Microseconds of one f(), from graphs of `inner` of them: the median of `rounds` replays.
  template <class F>
  double time(int inner, int rounds, F&& f) {
    f();
    stream->synchronize();
    stream->begin_capture();
    for (int i = 0; i < inner; ++i) f();
    const std::unique_ptr<platform::Graph> graph = stream->end_capture();
    const cudaStream_t native = platform::cuda::native(*stream);
    cudaEvent_t begin, end;
    QUIRE_CUDA_CHECK(cudaEventCreate(&begin));
    QUIRE_CUDA_CHECK(cudaEventCreate(&end));
    std::vector<double> times;
    for (int r = 0; r < rounds + 1; ++r) {
      QUIRE_CUDA_CHECK(cudaEventRecord(begin, native));
      stream->launch(*graph);
      QUIRE_CUDA_CHECK(cudaEventRecord(end, native));
      QUIRE_CUDA_CHECK(cudaEventSynchronize(end));
      float ms = 0.0f;
      QUIRE_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (r > 0) times.push_back(double{ms} * 1e3 / inner);
    }
    QUIRE_CUDA_CHECK(cudaEventDestroy(begin));
    QUIRE_CUDA_CHECK(cudaEventDestroy(end));
    return median(std::move(times));
  }

  OpsLimits limits;
  std::int64_t only_rows = 0;
  std::unique_ptr<platform::Device> device;
  std::unique_ptr<platform::Stream> stream;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<platform::Buffer> workspace;
  std::vector<std::unique_ptr<platform::Buffer>> kept;
  std::vector<std::uint16_t> pattern;
  std::vector<std::uint8_t> fp8_pattern;
};

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

// Microseconds of y = x W^T over copies of the weight that no pass finds in the L2 cache.
double time_product(Bench& b, const std::vector<WeightView>& copies, const TensorView& x, const TensorView& y,
                    RowRounding rounding) {
  Linear call;
  call.x = x;
  call.x_rounding = rounding;
  call.target_count = 1;
  const int count = static_cast<int>(copies.size()), passes = x.rows() > 256 ? 1 : std::max(1, 40 / count);
  return b.time(passes, x.rows() > 256 ? 5 : 9, [&] {
    for (const WeightView& weight : copies) {
      call.targets[0] = {weight, nullptr, y};
      b.ops->linear(call, *b.stream);
    }
  }) / count;
}

void bench_fp8_products(Bench& b) {
  struct Product {
    const char* name;
    std::int64_t cols, outs;
  };
  fmt::print("{:<10} {:>6} {:>10} {:>12} {:>10} {:>7} {:>9}\n", "product", "rows", "bf16, us", "fp8 by bf16",
             "fp8 by fp8", "ratio", "TFLOP/s");
  for (const Product& p : {Product{"q,k,v", kHidden, kQ + 2 * kKv}, Product{"o", kQ, kHidden},
                           Product{"gate,up", kHidden, 2 * kInter}, Product{"down", kInter, kHidden}}) {
    std::vector<WeightView> bf16, fp8;
    for (std::int64_t bytes = 0; bytes < (200 << 20); bytes += p.outs * p.cols) {
      bf16.push_back(b.weight(p.outs, p.cols));
      fp8.push_back(b.fp8_weight(p.outs, p.cols));
    }
    const std::size_t mark = b.kept.size();
    for (std::int64_t rows : {1, 16, 32, 64, 128, 256, 2048, 8192}) {
      if (!b.wanted(rows)) continue;
      const TensorView x = b.activations(rows, p.cols), y = b.activations(rows, p.outs);
      const double wide = time_product(b, bf16, x, y, RowRounding::none),
                   mixed = time_product(b, fp8, x, y, RowRounding::none),
                   narrow = time_product(b, fp8, x, y, RowRounding::e4m3);
      fmt::print("{:<10} {:>6} {:>10.2f} {:>12.2f} {:>10.2f} {:>7.3f} {:>9.1f}\n", p.name, rows, wide, mixed,
                 narrow, narrow / wide, 2.0 * static_cast<double>(rows * p.outs * p.cols) / narrow * 1e-6);
      b.kept.resize(mark);
    }
    b.kept.clear();
  }
}

void bench_rounding(Bench& b) {
  fmt::print("{:<22} {:>6} {:>10} {:>9}\n", "rows rounded to e4m3", "rows", "us", "GB/s");
  for (const std::int64_t cols : {kHidden, kInter}) {
    for (const std::int64_t rows : {64, 8192}) {
      if (!b.wanted(rows)) continue;
      const TensorView x = b.activations(rows, cols);
      const RoundedRows to{b.memory_of<std::uint8_t>(rows * cols), b.memory_of<float>(rows)};
      const double us = b.time(rows > 256 ? 4 : 40, 9, [&] { round_rows(x, to, *b.stream); });
      fmt::print("{:<22} {:>6} {:>10.2f} {:>9.0f}\n", fmt::format("of {} bf16", cols), rows, us,
                 3.0 * static_cast<double>(rows * cols) / us * 1e-3);
      b.kept.clear();
    }
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
  if (all || what == "fp8") {
    bench_fp8_products(bench);
    bench_rounding(bench);
  }
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
