// What the files of quire_ops_bench share: a device with its ops, data of real numbers, and timing by
// replaying graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/quantile.h"
#include "ops/cuda_entry.h"
#include "ops/ops.h"
#include "platform/cuda/stream.h"
#include "platform/platform.h"

namespace quire::ops::cuda {

// Llama-3.1-8B's sizes.
inline constexpr std::int64_t kHidden = 4096, kInter = 14336, kVocab = 128256, kQ = 4096, kKv = 1024;
inline constexpr std::int64_t kMostRows = 8192;

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

// Products of fp8 weights, and rounding activations to fp8.
void bench_fp8(Bench& bench);

}  // namespace quire::ops::cuda
