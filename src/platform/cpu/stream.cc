#include "platform/cpu/stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/check.h"
#include "platform/cpu/spin.h"
#include "platform/cpu/stream_impl.h"

namespace quire::platform::cpu {
namespace {

// Copies and fills are cut so that all threads share them; a piece is well over what handing it out costs.
constexpr std::int64_t kCopyPiece = 1 << 20;

struct EntryHeader {
  void (*run)(const void* closure, Team& team);
  std::uint32_t bytes;
  std::uint32_t padded;
};
static_assert(sizeof(EntryHeader) == 16, "closures are aligned to 16 bytes");

void copy_task_bytes(Task& target, const Task& source) {
  target.run = source.run;
  target.bytes = source.bytes;
  std::memcpy(target.closure, source.closure, source.bytes);
}

// A number that others sleep on. notify_*() looks for sleepers first and calls nobody if it sees none; that
// look must not come before the number is visible, or who goes to sleep in between sleeps forever. A release
// store may still be under way then.
void publish(std::atomic<std::uint32_t>& number, std::uint32_t value) {
  number.store(value, std::memory_order_seq_cst);
}

}  // namespace

CpuStream& as_cpu(Stream& stream) {
  auto* cpu = dynamic_cast<CpuStream*>(&stream);
  QUIRE_CHECK(cpu != nullptr, "a stream of another platform was given to the CPU at {}",
              static_cast<const void*>(&stream));
  return *cpu;
}

void ClosureGraph::add(const Task& task) {
  const std::uint32_t padded = (task.bytes + 15u) / 16u * 16u;
  const EntryHeader header{task.run, task.bytes, padded};
  const std::size_t at = entries_.size();
  entries_.resize(at + sizeof(header) + padded);
  std::memcpy(entries_.data() + at, &header, sizeof(header));
  std::memcpy(entries_.data() + at + sizeof(header), task.closure, task.bytes);
  ++nodes_;
}

void ClosureGraph::run(Team& team) const {
  const std::byte* at = entries_.data();
  const std::byte* end = at + entries_.size();
  while (at != end) {
    EntryHeader header;
    std::memcpy(&header, at, sizeof(header));
    header.run(at + sizeof(header), team);
    at += sizeof(header) + header.padded;
  }
}

bool CountedEvent::done() const {
  return static_cast<std::int32_t>(completed_.load(std::memory_order_acquire) - recorded_) >= 0;
}

void CountedEvent::wait() { await(recorded_); }

void CountedEvent::await(std::uint32_t number) {
  std::uint32_t seen = completed_.load(std::memory_order_acquire);
  while (static_cast<std::int32_t>(seen - number) < 0) {
    completed_.wait(seen, std::memory_order_acquire);
    seen = completed_.load(std::memory_order_acquire);
  }
}

void CountedEvent::complete(std::uint32_t number) {
  publish(completed_, number);
  completed_.notify_all();
}

WorkerStream::WorkerStream(int threads) : ring_(new Task[kQueueTasks]), team_(threads) {
  worker_ = std::thread([this] { worker_loop(); });
}

WorkerStream::~WorkerStream() {
  capture_.reset();
  // The stop travels as the last task: what was queued before it still runs.
  enqueue([this](Team&) { stop_.store(true, std::memory_order_relaxed); });
  worker_.join();
}

void WorkerStream::push(const Task& task) {
  if (capture_) return capture_->add(task);
  const std::uint32_t at = pushed_.load(std::memory_order_relaxed);
  std::uint32_t done = completed_.load(std::memory_order_acquire);
  while (at - done >= kQueueTasks) {
    completed_.wait(done, std::memory_order_acquire);
    done = completed_.load(std::memory_order_acquire);
  }
  copy_task_bytes(ring_[at % kQueueTasks], task);
  publish(pushed_, at + 1);
  pushed_.notify_one();
}

void WorkerStream::worker_loop() {
  using Clock = std::chrono::steady_clock;
  std::uint32_t next = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const auto queued = [&] { return pushed_.load(std::memory_order_acquire) != next; };
    if (!spin_until(queued)) {
      pushed_.wait(next, std::memory_order_acquire);
      continue;
    }
    const Task& task = ring_[next % kQueueTasks];
    const Clock::time_point begin = Clock::now();
    task.run(task.closure, team_);
    const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    busy_ns_.fetch_add(spent, std::memory_order_relaxed);
    publish(completed_, ++next);
    completed_.notify_all();
  }
}

void WorkerStream::synchronize() {
  QUIRE_CHECK(!capture_, "synchronize() while {} tasks are being recorded", capture_->nodes());
  const std::uint32_t target = pushed_.load(std::memory_order_relaxed);
  std::uint32_t done = completed_.load(std::memory_order_acquire);
  while (done != target) {
    completed_.wait(done, std::memory_order_acquire);
    done = completed_.load(std::memory_order_acquire);
  }
}

void WorkerStream::copy(void* target, const void* source, std::int64_t bytes) {
  QUIRE_CHECK(bytes >= 0, "bytes={}", bytes);
  if (bytes == 0) return;
  enqueue([=](Team& team) {
    team.for_each((bytes + kCopyPiece - 1) / kCopyPiece, [=](std::int64_t piece, int) {
      const std::int64_t begin = piece * kCopyPiece;
      std::memcpy(static_cast<char*>(target) + begin, static_cast<const char*>(source) + begin,
                  static_cast<std::size_t>(std::min(kCopyPiece, bytes - begin)));
    });
  });
}

void WorkerStream::fill(void* target, std::uint8_t byte, std::int64_t bytes) {
  QUIRE_CHECK(bytes >= 0, "bytes={}", bytes);
  if (bytes == 0) return;
  enqueue([=](Team& team) {
    team.for_each((bytes + kCopyPiece - 1) / kCopyPiece, [=](std::int64_t piece, int) {
      const std::int64_t begin = piece * kCopyPiece;
      std::memset(static_cast<char*>(target) + begin, byte,
                  static_cast<std::size_t>(std::min(kCopyPiece, bytes - begin)));
    });
  });
}

void WorkerStream::record(Event& event) {
  QUIRE_CHECK(!capture_, "events are recorded outside a capture ({} tasks so far)", capture_->nodes());
  auto* counted = &static_cast<CountedEvent&>(event);
  const std::uint32_t number = counted->next();
  enqueue([=](Team&) { counted->complete(number); });
}

void WorkerStream::wait(Event& event) {
  QUIRE_CHECK(!capture_, "events are awaited outside a capture ({} tasks so far)", capture_->nodes());
  auto* counted = &static_cast<CountedEvent&>(event);
  const std::uint32_t number = counted->recorded();
  enqueue([=](Team&) { counted->await(number); });
}

void WorkerStream::begin_capture() {
  QUIRE_CHECK(!capture_, "a capture of {} tasks is already open", capture_->nodes());
  capture_ = std::make_unique<ClosureGraph>();
}

std::unique_ptr<Graph> WorkerStream::end_capture() {
  QUIRE_CHECK(capture_ != nullptr, "no capture is open on stream {}", static_cast<const void*>(this));
  return std::move(capture_);
}

void WorkerStream::launch(Graph& graph) {
  const auto* closures = &static_cast<ClosureGraph&>(graph);
  enqueue([=](Team& team) { closures->run(team); });
}

}  // namespace quire::platform::cpu
