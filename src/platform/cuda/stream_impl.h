// The Stream, Graph and Event of a CUDA device. Made by the device; nobody else includes this.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>

#include "platform/platform.h"

namespace quire::platform::cuda {

// Makes a device the calling thread's current one; asks the runtime only when that changes. Nothing else in
// this folder may set it.
void make_current(int ordinal);

// A recorded and instantiated graph, uploaded to the device when it is made: its first launch is no slower.
class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, cudaGraphExec_t exec, std::int64_t nodes)
      : graph_(graph), exec_(exec), nodes_(nodes) {}
  ~CudaGraph() override;
  std::int64_t nodes() const override { return nodes_; }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t exec_;
  std::int64_t nodes_;
};

// Waiting sleeps (after a short look): a step takes milliseconds, and the cores have other work.
class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int ordinal);
  ~CudaEvent() override;
  bool done() const override;
  void wait() override;
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(int ordinal);
  ~CudaStream() override;

  void copy(void* target, const void* source, std::int64_t bytes) override;
  void fill(void* target, std::uint8_t byte, std::int64_t bytes) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void launch(Graph& graph) override;
  void begin_span() override;
  void end_span() override;
  std::int64_t busy_ns() const override;

  cudaStream_t native() const { return stream_; }
  int ordinal() const { return ordinal_; }

 private:
  struct Span {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };
  static constexpr std::size_t kSpans = 16;
  // Takes in the oldest span that is not counted yet; false when it has not ended and `block` is not set.
  bool count_span(bool block) const;

  int ordinal_;
  cudaStream_t stream_ = nullptr;
  bool capturing_ = false;
  std::array<Span, kSpans> spans_{};  // a ring, made as it is first used
  std::size_t begun_ = 0;             // spans ever
  std::size_t ended_ = 0;
  mutable std::size_t counted_ = 0;  // counted when somebody asks
  mutable double busy_ns_ = 0.0;
};

}  // namespace quire::platform::cuda
