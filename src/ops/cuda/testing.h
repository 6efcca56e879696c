// What the device tests of this folder share: a stream with the device's ops and one with the CPU's, memory
// of both, and views of the same rows in both.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/testing.h"
#include "ops/cuda_entry.h"
#include "ops/ops.h"
#include "platform/platform.h"

namespace quire::ops::cuda::testing {

using cpu::testing::random_floats;

inline float rounded(DType type, float x) {
  return type == DType::bf16  ? bf16_to_f32(f32_to_bf16(x))
         : type == DType::f16 ? f16_to_f32(f32_to_f16(x))
                              : x;
}

inline OpsLimits test_limits(std::int64_t vocab = 1024) {
  OpsLimits limits;
  limits.max_rows = 600;
  limits.max_cols = 14336;
  limits.max_expert_inter = 512;
  limits.max_top_k = 8;
  limits.max_hidden = 512;
  limits.max_logit_rows = 64;
  limits.vocab = vocab;
  limits.threads = 4;
  return limits;
}

// Host values of a view of one type: what both sides are given.
struct Host {
  std::vector<float> values;  // in memory order, gaps included
  TensorView view;            // of `values`, float32
};

struct Rig {
  explicit Rig(std::int64_t vocab = 1024) {
    device = std::move(platform::open_device("cuda", platform::ThreadPlan{}).value());
    stream = device->make_stream();
    ops = make_cuda_ops(*device);
    host_device = std::move(platform::open_device("cpu", platform::ThreadPlan{4}).value());
    host_stream = host_device->make_stream();
    host_ops = cpu::make_cpu_ops();
    const OpsLimits limits = test_limits(vocab);
    workspace = memory(ops->workspace_bytes(limits));
    ops->set_workspace(workspace->data(), workspace->bytes(), limits);
    host_workspace = std::move(host_device->allocate(host_ops->workspace_bytes(limits), "workspace").value());
    host_ops->set_workspace(host_workspace->data(), host_workspace->bytes(), limits);
  }

  std::unique_ptr<platform::Buffer> memory(std::int64_t bytes) {
    return std::move(device->allocate(std::max<std::int64_t>(bytes, 16), "test").value());
  }
  // Device memory with these values; lives as long as the rig.
  template <class T>
  T* upload(const std::vector<T>& values) {
    auto buffer = memory(static_cast<std::int64_t>(values.size() * sizeof(T)));
    stream->copy(buffer->data(), values.data(), static_cast<std::int64_t>(values.size() * sizeof(T)));
    stream->synchronize();
    kept.push_back(std::move(buffer));
    return kept.back()->template as<T>();
  }
  template <class T>
  std::vector<T> download(const T* data, std::size_t count) {
    std::vector<T> values(count);
    stream->copy(values.data(), data, static_cast<std::int64_t>(count * sizeof(T)));
    stream->synchronize();
    return values;
  }
  // A device copy of a host view, in `type`.
  TensorView mirror(const Host& host, DType type) {
    TensorView view = host.view;
    view.dtype = type;
    if (type == DType::f32) {
      view.data = upload(host.values);
      return view;
    }
    std::vector<std::uint16_t> bits;
    for (float x : host.values) bits.push_back(type == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x));
    view.data = upload(bits);
    return view;
  }
  std::vector<float> read(const TensorView& view, std::size_t count) {
    if (view.dtype == DType::f32) return download(static_cast<const float*>(view.data), count);
    std::vector<float> values;
    for (std::uint16_t bits : download(static_cast<const std::uint16_t*>(view.data), count))
      values.push_back(view.dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
    return values;
  }
  void finish() {
    stream->synchronize();
    host_stream->synchronize();
  }

  std::unique_ptr<platform::Device> device, host_device;
  std::unique_ptr<platform::Stream> stream, host_stream;
  std::unique_ptr<platform::Buffer> workspace, host_workspace;
  std::unique_ptr<Ops> ops, host_ops;
  std::vector<std::unique_ptr<platform::Buffer>> kept;
};

// Random rows that a value of `type` holds exactly; what lies between the rows is NaN.
inline Host random_rows(std::int64_t rows, std::int64_t cols, std::int64_t stride, DType type, unsigned seed,
                        float scale = 1.0f) {
  Host host;
  host.values.assign(static_cast<std::size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> random = random_floats(rows * cols, seed, scale);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c)
      host.values[static_cast<std::size_t>(r * stride + c)] =
          rounded(type, random[static_cast<std::size_t>(r * cols + c)]);
  }
  host.view = TensorView::matrix(host.values.data(), DType::f32, rows, cols, stride);
  return host;
}
// Nothing but NaN: every element of an output must be written, and nothing beside it.
inline Host poisoned(std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  Host host;
  host.values.assign(static_cast<std::size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
  host.view = TensorView::matrix(host.values.data(), DType::f32, rows, cols, stride);
  return host;
}

// One unit in the last place of `type`, relative to the lowest value with that last place.
inline float unit_of(DType type) {
  return type == DType::bf16 ? 0x1p-7f : type == DType::f16 ? 0x1p-10f : 0x1p-23f;
}

// Element by element: NaN where NaN is, else within `units` roundings of `type` plus `absolute`.
inline void expect_close(const std::vector<float>& got, const std::vector<float>& want, DType type,
                         float units, float absolute, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  int shown = 0;
  for (std::size_t i = 0; i < want.size() && shown < 3; ++i) {
    const bool both_nan = std::isnan(got[i]) && std::isnan(want[i]);
    const float bound = units * unit_of(type) * std::fabs(want[i]) + absolute;
    if (both_nan || std::fabs(got[i] - want[i]) <= bound) continue;
    ++shown;
    ADD_FAILURE() << what << ": at " << i << " got " << got[i] << " want " << want[i] << " +- " << bound;
  }
}

}  // namespace quire::ops::cuda::testing
