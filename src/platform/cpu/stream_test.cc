#include "platform/cpu/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#include "platform/entry.h"

namespace {
std::atomic<long> g_allocations{0};
}
// Counts every heap allocation of the program: the steady state must make none.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* data = std::malloc(bytes)) return data;
  std::abort();
}
__attribute__((noinline)) void operator delete(void* data) noexcept { std::free(data); }
__attribute__((noinline)) void operator delete(void* data, std::size_t) noexcept { std::free(data); }

namespace quire::platform::cpu {
namespace {

std::unique_ptr<Device> make_device(int threads) { return std::move(open(ThreadPlan{threads}).value()); }

class Streams : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Device> device_ = make_device(GetParam());
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  CpuStream& cpu_ = as_cpu(*stream_);
};

TEST_P(Streams, RunsTasksInOrder) {
  std::vector<int> seen;
  seen.reserve(5000);
  for (int i = 0; i < 5000; ++i) {
    cpu_.enqueue([i, out = &seen](Team&) { out->push_back(i); });
  }
  stream_->synchronize();
  ASSERT_EQ(seen.size(), 5000u);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST_P(Streams, TheTeamRunsEveryIndexOnce) {
  std::mt19937 random(7);
  std::vector<int> hits(3000);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t count = random() % hits.size();
    std::fill(hits.begin(), hits.end(), 0);
    cpu_.enqueue([count, out = hits.data()](Team& team) {
      team.for_each(count,
                    [=, &team](std::int64_t i, int thread) { out[i] += thread < team.threads() ? 1 : 100; });
    });
    stream_->synchronize();
    EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), std::int64_t{0}), count);
    EXPECT_EQ(*std::max_element(hits.begin(), hits.end()), count > 0 ? 1 : 0);
  }
}

// Loops of one task follow each other at once: a helper that is late for one must not disturb the next.
TEST_P(Streams, LoopsFollowEachOtherWithoutLosingIndices) {
  std::vector<std::int64_t> sums(4096, 0);
  cpu_.enqueue([out = sums.data()](Team& team) {
    for (std::int64_t round = 1; round <= 4000; ++round) {
      team.for_each(round % 13, [=](std::int64_t i, int) { out[i] += round; });
    }
  });
  stream_->synchronize();
  for (std::int64_t i = 0; i < 12; ++i) {
    std::int64_t expected = 0;
    for (std::int64_t round = 1; round <= 4000; ++round) expected += i < round % 13 ? round : 0;
    EXPECT_EQ(sums[static_cast<std::size_t>(i)], expected);
  }
}

struct Recorded {
  std::vector<float> values = std::vector<float>(257, 0.0f);
  float factor = 1.0f;  // read on the stream: a replay sees its value of that time
};

void put_work(CpuStream& stream, Recorded& r) {
  for (int step = 0; step < 40; ++step) {
    stream.enqueue([step, r = &r](Team& team) {
      team.for_each(static_cast<std::int64_t>(r->values.size()), [=](std::int64_t i, int) {
        r->values[static_cast<std::size_t>(i)] =
            r->values[static_cast<std::size_t>(i)] * 0.9f + r->factor * static_cast<float>(step + i);
      });
    });
  }
  stream.enqueue([r = &r](Team&) { r->factor *= 1.5f; });
}

TEST_P(Streams, ReplayEqualsEager) {
  Recorded eager, replayed;
  for (int i = 0; i < 3; ++i) put_work(cpu_, eager);
  stream_->begin_capture();
  put_work(cpu_, replayed);
  const std::unique_ptr<Graph> graph = stream_->end_capture();
  EXPECT_EQ(graph->nodes(), 41);
  stream_->synchronize();
  EXPECT_EQ(replayed.factor, 1.0f) << "recording must not run";
  for (int i = 0; i < 3; ++i) stream_->launch(*graph);
  stream_->synchronize();
  EXPECT_EQ(eager.values, replayed.values);
  EXPECT_EQ(eager.factor, replayed.factor);
}

TEST_P(Streams, CopiesAndFillsOfAllSizes) {
  for (std::int64_t bytes : {0, 1, 63, 4096, (1 << 20) - 1, 1 << 20, (3 << 20) + 17}) {
    std::vector<unsigned char> source(static_cast<std::size_t>(bytes) + 1), target(source.size(), 0);
    stream_->fill(source.data(), 0xa5, bytes);
    stream_->copy(target.data(), source.data(), bytes);
    stream_->synchronize();
    EXPECT_EQ(std::count(target.begin(), target.end(), 0xa5), bytes);
    EXPECT_EQ(target.back(), 0);
  }
}

TEST_P(Streams, EventsOrderStreamsAndHost) {
  const std::unique_ptr<Stream> other = device_->make_stream();
  const std::unique_ptr<Event> event = device_->make_event();
  EXPECT_TRUE(event->done());
  event->wait();
  int value = 0;
  for (int round = 1; round <= 200; ++round) {
    cpu_.enqueue([&value](Team&) { ++value; });
    stream_->record(*event);
    other->wait(*event);
    const std::unique_ptr<Event> back = device_->make_event();
    as_cpu(*other).enqueue([&value](Team&) { value *= 2; });
    other->record(*back);
    back->wait();
    EXPECT_TRUE(event->done());
    EXPECT_EQ(value % 2, 0);
    value = round;
  }
}

TEST_P(Streams, DestructionRunsWhatIsQueued) {
  std::vector<int> ran(1, 0);
  for (int i = 0; i < 20; ++i) {
    std::unique_ptr<Stream> stream = device_->make_stream();
    for (int k = 0; k < 50; ++k) as_cpu(*stream).enqueue([out = ran.data()](Team&) { ++*out; });
    stream.reset();
  }
  EXPECT_EQ(ran[0], 1000);
}

TEST_P(Streams, SteadyStateAllocatesNothing) {
  Recorded r;
  stream_->begin_capture();
  put_work(cpu_, r);
  const std::unique_ptr<Graph> graph = stream_->end_capture();
  const std::unique_ptr<Event> event = device_->make_event();
  stream_->launch(*graph);
  stream_->synchronize();
  const long before = g_allocations.load();
  for (int i = 0; i < 50; ++i) {
    stream_->launch(*graph);
    put_work(cpu_, r);
    stream_->fill(r.values.data(), 0, 64);
    stream_->record(*event);
    event->wait();
    stream_->synchronize();
  }
  EXPECT_EQ(g_allocations.load() - before, 0);
  EXPECT_GT(stream_->busy_ns(), 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, Streams, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace quire::platform::cpu
