// The CUDA platform on a GPU: memory, order on a stream, replay, the arena's addresses, spans.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "platform/cuda/library.h"
#include "platform/cuda/stream.h"
#include "platform/platform.h"

namespace quire::platform {
namespace {

class CudaPlatform : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_device("cuda", ThreadPlan{});
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    device_ = std::move(*opened);
    stream_ = device_->make_stream();
  }
  std::unique_ptr<Buffer> device_memory(std::int64_t bytes) {
    auto buffer = device_->allocate(bytes, "test");
    EXPECT_TRUE(buffer.ok());
    return std::move(*buffer);
  }
  std::unique_ptr<Buffer> pinned(std::int64_t bytes) {
    auto buffer = device_->allocate_pinned(bytes, "test");
    EXPECT_TRUE(buffer.ok());
    return std::move(*buffer);
  }
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaPlatform, SaysWhatItIs) {
  EXPECT_EQ(device_->info().kind, Kind::cuda);
  EXPECT_GE(device_->info().arch, 80);
  EXPECT_GT(device_->info().cores, 0);
  const MemoryInfo memory = device_->memory();
  EXPECT_GT(memory.available_bytes, 0);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
  EXPECT_NE(platform_lines().back().find(device_->info().name), std::string::npos);
}

TEST_F(CudaPlatform, AnAbsentOrdinalIsNamedWithThoseThereAre) {
  const auto absent = open_device("cuda:99", ThreadPlan{});
  ASSERT_FALSE(absent.ok());
  EXPECT_NE(absent.error().message.find("cuda:0"), std::string::npos) << absent.error().message;
}

TEST_F(CudaPlatform, CopiesInOrder) {
  const std::int64_t bytes = 1 << 20;
  auto up = pinned(bytes), down = pinned(bytes);
  auto a = device_memory(bytes), b = device_memory(bytes);
  std::iota(up->as<std::uint8_t>(), up->as<std::uint8_t>() + bytes, std::uint8_t{1});
  stream_->copy(a->data(), up->data(), bytes);
  stream_->copy(b->data(), a->data(), bytes);
  stream_->fill(b->data(), 0x5a, 16);
  stream_->copy(down->data(), b->data(), bytes);
  stream_->synchronize();
  for (std::int64_t i = 0; i < bytes; ++i)
    ASSERT_EQ(down->as<std::uint8_t>()[i], i < 16 ? 0x5a : up->as<std::uint8_t>()[i]) << i;
}

TEST_F(CudaPlatform, AReplayReadsWhatLiesThereWhenItRuns) {
  auto up = pinned(4), down = pinned(4);
  auto memory = device_memory(4);
  *up->as<std::int32_t>() = 1;
  stream_->begin_capture();
  stream_->copy(memory->data(), up->data(), 4);
  stream_->copy(down->data(), memory->data(), 4);
  const std::unique_ptr<Graph> graph = stream_->end_capture();
  EXPECT_EQ(graph->nodes(), 2);
  for (const std::int32_t value : {7, 8}) {
    *up->as<std::int32_t>() = value;
    stream_->launch(*graph);
    stream_->synchronize();
    EXPECT_EQ(*down->as<std::int32_t>(), value);
  }
}

TEST_F(CudaPlatform, EventsOrderStreams) {
  const std::int64_t bytes = 64 << 20;
  auto up = pinned(bytes), down = pinned(bytes);
  auto memory = device_memory(bytes);
  auto second = device_->make_stream();
  auto event = device_->make_event();
  EXPECT_TRUE(event->done());
  std::memset(up->data(), 3, static_cast<std::size_t>(bytes));
  std::memset(down->data(), 0, static_cast<std::size_t>(bytes));
  stream_->copy(memory->data(), up->data(), bytes);
  stream_->record(*event);
  second->wait(*event);
  second->copy(down->data(), memory->data(), bytes);
  second->record(*event);
  event->wait();
  EXPECT_TRUE(event->done());
  EXPECT_EQ(std::memcmp(up->data(), down->data(), static_cast<std::size_t>(bytes)), 0);
}

TEST_F(CudaPlatform, TheArenaKeepsItsAddressesWhenItGrows) {
  auto reserved = device_->reserve_arena(std::int64_t{1} << 40);  // more than any device has
  ASSERT_TRUE(reserved.ok()) << reserved.error().message;
  const std::unique_ptr<Arena> arena = std::move(*reserved);
  EXPECT_EQ(arena->backed_bytes(), 0);
  const std::int64_t first = (5 << 20) + 12, second = 23 << 20;
  ASSERT_TRUE(arena->back(first).ok());
  auto* base = static_cast<std::uint8_t*>(arena->base());
  stream_->begin_capture();
  stream_->fill(base, 1, first);
  const std::unique_ptr<Graph> graph = stream_->end_capture();
  ASSERT_TRUE(arena->back(second).ok());  // behind what was recorded
  EXPECT_EQ(arena->base(), base);
  stream_->launch(*graph);
  stream_->fill(base + first, 2, second - first);
  auto down = pinned(second);
  stream_->copy(down->data(), base, second);
  stream_->synchronize();
  for (std::int64_t i = 0; i < second; ++i) ASSERT_EQ(down->as<std::uint8_t>()[i], i < first ? 1 : 2) << i;
}

TEST_F(CudaPlatform, TooMuchMemoryIsAnAnswerWithNumbers) {
  const std::int64_t bytes = device_->memory().total_bytes + (std::int64_t{1} << 30);
  const auto buffer = device_->allocate(bytes, "weights");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().code, Code::no_resources);
  EXPECT_NE(buffer.error().message.find("weights needs"), std::string::npos) << buffer.error().message;
  auto arena = device_->reserve_arena(bytes);
  ASSERT_TRUE(arena.ok());
  const Status backed = (*arena)->back(bytes);
  ASSERT_FALSE(backed.ok());
  EXPECT_EQ(backed.error().code, Code::no_resources);
  EXPECT_TRUE(device_->allocate(1 << 20, "after the refusals").ok());
}

TEST_F(CudaPlatform, SpansCountOnlyWork) {
  auto memory = device_memory(256 << 20);
  EXPECT_EQ(stream_->busy_ns(), 0);
  for (int i = 0; i < 40; ++i) {  // more than the ring of spans holds
    stream_->begin_span();
    stream_->fill(memory->data(), 1, memory->bytes());
    stream_->end_span();
  }
  stream_->synchronize();
  const std::int64_t busy = stream_->busy_ns();
  EXPECT_GT(busy, 0);
  stream_->fill(memory->data(), 1, memory->bytes());
  stream_->synchronize();
  EXPECT_EQ(stream_->busy_ns(), busy);
}

TEST_F(CudaPlatform, NativeIsTheSameHandleEveryTime) {
  EXPECT_EQ(cuda::native(*stream_), cuda::native(*stream_));
  EXPECT_EQ(cudaStreamQuery(cuda::native(*stream_)), cudaSuccess);
}

TEST_F(CudaPlatform, FindsTheMatrixLibrary) {
  const auto library = cuda::Library::open("libcublasLt.so.13");
  ASSERT_TRUE(library.ok()) << library.error().message;
  EXPECT_NE(library->find<void*>("cublasLtCreate"), nullptr);
}

}  // namespace
}  // namespace quire::platform
