#include "platform/cuda/stream.h"

#include <fmt/core.h>

#include <chrono>

#include "base/check.h"
#include "platform/cuda/stream_impl.h"

namespace quire::platform::cuda {
namespace {

// How long waiting looks before it sleeps: about what a wake-up costs.
constexpr std::chrono::microseconds kLook{20};

}  // namespace

void make_current(int ordinal) {
  thread_local int current = -1;
  if (current == ordinal) return;
  QUIRE_CUDA_CHECK(cudaSetDevice(ordinal));
  current = ordinal;
}

void fail(const char* file, int line, const char* call, cudaError_t error) {
  check_failed(file, line, call, fmt::format("{}: {}", cudaGetErrorName(error), cudaGetErrorString(error)));
}

cudaStream_t native(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  QUIRE_CHECK(cuda != nullptr, "a stream of another platform was given to CUDA at {}",
              static_cast<const void*>(&stream));
  make_current(cuda->ordinal());
  return cuda->native();
}

CudaGraph::~CudaGraph() {
  QUIRE_CUDA_CHECK(cudaGraphExecDestroy(exec_));
  QUIRE_CUDA_CHECK(cudaGraphDestroy(graph_));
}

CudaEvent::CudaEvent(int ordinal) {
  make_current(ordinal);
  QUIRE_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
}

CudaEvent::~CudaEvent() { QUIRE_CUDA_CHECK(cudaEventDestroy(event_)); }

bool CudaEvent::done() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // an answer, not an error that the next launch's check should find
    return false;
  }
  QUIRE_CUDA_CHECK(state);
  return true;
}

void CudaEvent::wait() {
  const auto until = std::chrono::steady_clock::now() + kLook;
  while (!done()) {
    if (std::chrono::steady_clock::now() < until) continue;
    QUIRE_CUDA_CHECK(cudaEventSynchronize(event_));
    return;
  }
}

CudaStream::CudaStream(int ordinal) : ordinal_(ordinal) {
  make_current(ordinal_);
  QUIRE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaStream::~CudaStream() {
  make_current(ordinal_);
  QUIRE_CUDA_CHECK(cudaStreamSynchronize(stream_));
  for (const Span& span : spans_) {
    if (span.begin == nullptr) continue;
    QUIRE_CUDA_CHECK(cudaEventDestroy(span.begin));
    QUIRE_CUDA_CHECK(cudaEventDestroy(span.end));
  }
  QUIRE_CUDA_CHECK(cudaStreamDestroy(stream_));
}

void CudaStream::copy(void* target, const void* source, std::int64_t bytes) {
  QUIRE_CHECK(bytes >= 0, "bytes={}", bytes);
  if (bytes == 0) return;
  make_current(ordinal_);
  QUIRE_CUDA_CHECK(
      cudaMemcpyAsync(target, source, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_));
}

void CudaStream::fill(void* target, std::uint8_t byte, std::int64_t bytes) {
  QUIRE_CHECK(bytes >= 0, "bytes={}", bytes);
  if (bytes == 0) return;
  make_current(ordinal_);
  QUIRE_CUDA_CHECK(cudaMemsetAsync(target, byte, static_cast<std::size_t>(bytes), stream_));
}

void CudaStream::record(Event& event) {
  QUIRE_CHECK(!capturing_, "events are recorded outside a capture, on device {}", ordinal_);
  make_current(ordinal_);
  QUIRE_CUDA_CHECK(cudaEventRecord(static_cast<CudaEvent&>(event).native(), stream_));
}

void CudaStream::wait(Event& event) {
  QUIRE_CHECK(!capturing_, "events are awaited outside a capture, on device {}", ordinal_);
  make_current(ordinal_);
  QUIRE_CUDA_CHECK(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).native(), 0));
}

void CudaStream::synchronize() {
  QUIRE_CHECK(!capturing_, "synchronize() while work is being recorded, on device {}", ordinal_);
  QUIRE_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

void CudaStream::begin_capture() {
  QUIRE_CHECK(!capturing_, "a capture is already open on device {}", ordinal_);
  make_current(ordinal_);
  // Thread local: other threads (loading, the server) go on allocating meanwhile.
  QUIRE_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
}

std::unique_ptr<Graph> CudaStream::end_capture() {
  QUIRE_CHECK(capturing_, "no capture is open on device {}", ordinal_);
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  QUIRE_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  std::size_t nodes = 0;
  QUIRE_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  cudaGraphExec_t exec = nullptr;
  QUIRE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  QUIRE_CUDA_CHECK(cudaGraphUpload(exec, stream_));
  return std::make_unique<CudaGraph>(graph, exec, static_cast<std::int64_t>(nodes));
}

void CudaStream::launch(Graph& graph) {
  make_current(ordinal_);
  QUIRE_CUDA_CHECK(cudaGraphLaunch(static_cast<CudaGraph&>(graph).exec(), stream_));
}

void CudaStream::begin_span() {
  QUIRE_CHECK(begun_ == ended_, "a span is open: {} begun, {} ended", begun_, ended_);
  make_current(ordinal_);
  if (begun_ - counted_ == kSpans) count_span(true);
  Span& span = spans_[begun_ % kSpans];
  if (span.begin == nullptr) {
    QUIRE_CUDA_CHECK(cudaEventCreate(&span.begin));
    QUIRE_CUDA_CHECK(cudaEventCreate(&span.end));
  }
  QUIRE_CUDA_CHECK(cudaEventRecord(span.begin, stream_));
  ++begun_;
}

void CudaStream::end_span() {
  QUIRE_CHECK(begun_ == ended_ + 1, "no span is open: {} begun, {} ended", begun_, ended_);
  QUIRE_CUDA_CHECK(cudaEventRecord(spans_[ended_ % kSpans].end, stream_));
  ++ended_;
}

bool CudaStream::count_span(bool block) const {
  const Span& span = spans_[counted_ % kSpans];
  if (block) QUIRE_CUDA_CHECK(cudaEventSynchronize(span.end));
  float ms = 0.0f;
  const cudaError_t error = cudaEventElapsedTime(&ms, span.begin, span.end);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  QUIRE_CUDA_CHECK(error);
  busy_ns_ += static_cast<double>(ms) * 1e6;
  ++counted_;
  return true;
}

std::int64_t CudaStream::busy_ns() const {
  while (counted_ < ended_ && count_span(false)) continue;
  return static_cast<std::int64_t>(busy_ns_);
}

}  // namespace quire::platform::cuda
