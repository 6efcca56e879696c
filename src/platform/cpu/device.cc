// The CPU as a Device: buffers, the arena, and the facts about the machine.
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "platform/cpu/isa.h"
#include "platform/cpu/memory.h"
#include "platform/cpu/stream_impl.h"
#include "platform/entry.h"

namespace quire::platform::cpu {
namespace {

constexpr std::int64_t kHugePage = 2 << 20;
// Below this an allocation is ordinary heap memory; above it, its own mapping on huge pages.
constexpr std::int64_t kMapFrom = kHugePage;
// Small buffers are not worth a look at the machine's memory.
constexpr std::int64_t kCheckFrom = 64 << 20;
constexpr std::size_t kAlignment = 64;

std::int64_t round_up(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

#if defined(QUIRE_SANITIZED) || !defined(__OPTIMIZE__)
// A NaN in every float32, bf16 and f16 that somebody reads before writing it.
void poison(void* data, std::int64_t bytes) { std::memset(data, 0xff, static_cast<std::size_t>(bytes)); }
#else
void poison(void*, std::int64_t) {}
#endif

Error out_of_memory(std::string_view owner, std::int64_t bytes, const MemoryInfo& memory) {
  if (bytes <= memory.available_bytes) {
    return no_resources(
        fmt::format("{} needs {} bytes, which the system refuses though the machine has {}: "
                    "raise this process's memory limit (ulimit -v) or use less",
                    owner, bytes, memory.available_bytes));
  }
  return no_resources(fmt::format("{} needs {} bytes and the machine has {} available of {}", owner, bytes,
                                  memory.available_bytes, memory.total_bytes));
}

// A mapping whose start is a multiple of a huge page, or null.
void* map_aligned(std::int64_t bytes, int protection, int flags) {
  const std::size_t whole = static_cast<std::size_t>(bytes + kHugePage);
  void* raw = mmap(nullptr, whole, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) munmap(raw, aligned - begin);
  const std::uintptr_t end = begin + whole;
  const std::uintptr_t used_end = aligned + static_cast<std::uintptr_t>(bytes);
  if (end > used_end) munmap(reinterpret_cast<void*>(used_end), end - used_end);
  return reinterpret_cast<void*>(aligned);
}

class HeapBuffer final : public Buffer {
 public:
  HeapBuffer(void* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}
  ~HeapBuffer() override { std::free(data_); }
  void* data() const override { return data_; }
  std::int64_t bytes() const override { return bytes_; }

 private:
  void* data_;
  std::int64_t bytes_;
};

class MappedBuffer final : public Buffer {
 public:
  MappedBuffer(void* data, std::int64_t bytes, std::int64_t mapped)
      : data_(data), bytes_(bytes), mapped_(mapped) {}
  ~MappedBuffer() override { munmap(data_, static_cast<std::size_t>(mapped_)); }
  void* data() const override { return data_; }
  std::int64_t bytes() const override { return bytes_; }

 private:
  void* data_;
  std::int64_t bytes_;
  std::int64_t mapped_;
};

class MappedArena final : public Arena {
 public:
  MappedArena(void* base, std::int64_t reserved) : base_(base), reserved_(reserved) {}
  ~MappedArena() override { munmap(base_, static_cast<std::size_t>(reserved_)); }
  void* base() const override { return base_; }
  std::int64_t reserved_bytes() const override { return reserved_; }
  std::int64_t backed_bytes() const override { return backed_; }
  Status back(std::int64_t bytes) override;

 private:
  void* base_;
  std::int64_t reserved_;
  std::int64_t backed_ = 0;
};

// The memory is checked for here, with numbers, and becomes the process's own as it is first written: a run
// holds what its sequences use, and nobody waits at the start for gigabytes of zeros.
Status MappedArena::back(std::int64_t bytes) {
  QUIRE_CHECK(bytes >= backed_ && bytes <= reserved_, "bytes={} backed={} reserved={}", bytes, backed_,
              reserved_);
  const std::int64_t more = bytes - backed_;
  if (more == 0) return {};
  const MemoryInfo memory = read_memory("");
  if (more > memory.available_bytes) return out_of_memory("the KV arena", more, memory);
  // The border may lie inside a page that is writable already; doing it again is harmless.
  const std::int64_t from = backed_ / 4096 * 4096;
  char* begin = static_cast<char*>(base_) + from;
  const auto length = static_cast<std::size_t>(bytes - from);
  if (mprotect(begin, length, PROT_READ | PROT_WRITE) != 0)
    return out_of_memory("the KV arena", more, memory);
  madvise(begin, length, MADV_HUGEPAGE);
  poison(static_cast<char*>(base_) + backed_, more);
  backed_ = bytes;
  return {};
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const ThreadPlan& threads) : threads_(threads) {
    info_.kind = Kind::cpu;
    info_.arch = static_cast<int>(isa());
    info_.name = fmt::format("{}, {}", cpu_brand(), to_string(isa()));
    info_.cores = usable_threads();
    info_.memory_bytes = read_memory("").total_bytes;
  }
  const DeviceInfo& info() const override { return info_; }
  MemoryInfo memory() const override { return read_memory(""); }
  Result<std::unique_ptr<Buffer>> allocate(std::int64_t bytes, std::string_view owner) override;
  Result<std::unique_ptr<Buffer>> allocate_pinned(std::int64_t bytes, std::string_view owner) override {
    return allocate(bytes, owner);
  }
  Result<std::unique_ptr<Arena>> reserve_arena(std::int64_t bytes) override;
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<WorkerStream>(threads_.compute); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CountedEvent>(); }

 private:
  ThreadPlan threads_;
  DeviceInfo info_;
};

Result<std::unique_ptr<Buffer>> CpuDevice::allocate(std::int64_t bytes, std::string_view owner) {
  QUIRE_CHECK(bytes >= 0, "owner={} bytes={}", owner, bytes);
  if (bytes >= kCheckFrom) {
    const MemoryInfo memory = read_memory("");
    if (bytes > memory.available_bytes) return out_of_memory(owner, bytes, memory);
  }
  std::unique_ptr<Buffer> buffer;
  if (bytes < kMapFrom) {
    const auto size = static_cast<std::size_t>(round_up(std::max<std::int64_t>(bytes, 1), kAlignment));
    if (void* data = std::aligned_alloc(kAlignment, size)) buffer = std::make_unique<HeapBuffer>(data, bytes);
  } else {
    const std::int64_t mapped = round_up(bytes, 4096);
    if (void* data = map_aligned(mapped, PROT_READ | PROT_WRITE, 0)) {
      madvise(data, static_cast<std::size_t>(mapped), MADV_HUGEPAGE);
      buffer = std::make_unique<MappedBuffer>(data, bytes, mapped);
    }
  }
  if (!buffer) return out_of_memory(owner, bytes, read_memory(""));
  poison(buffer->data(), bytes);
  return buffer;
}

Result<std::unique_ptr<Arena>> CpuDevice::reserve_arena(std::int64_t bytes) {
  QUIRE_CHECK(bytes > 0, "bytes={}", bytes);
  const std::int64_t reserved = round_up(bytes, kHugePage);
  void* base = map_aligned(reserved, PROT_NONE, MAP_NORESERVE);
  if (base == nullptr) {
    return no_resources(fmt::format("{} bytes of addresses for the KV arena: {}: use a smaller --kv-memory",
                                    reserved, std::strerror(errno)));
  }
  return std::unique_ptr<Arena>(std::make_unique<MappedArena>(base, reserved));
}

}  // namespace

std::string line() { return "cpu: " + describe_cpu(); }

Result<std::unique_ptr<Device>> open(const ThreadPlan& threads) {
  QUIRE_CHECK(threads.compute >= 1, "compute threads={}", threads.compute);
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(threads));
}

}  // namespace quire::platform::cpu
