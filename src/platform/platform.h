// Device, Stream, Event, Buffer, Graph: what an engine needs of a machine, and nothing more. One
// implementation per platform (cpu/, cuda/); a build without one links its "not in this build" stub, so
// every symbol exists and callers never test a macro.
//
// Asynchrony is the contract, also on the CPU: work put on a Stream runs later, in order, on the
// stream's own worker. Host code may not read what a stream writes before synchronize() or an Event.
// Thread rules: a Stream is used by one thread at a time; Device may be used by several.
// Errors: a failing device API is a bug or broken hardware: the process ends with the stage's name and
// the ledger. Running out of memory is a Result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/kv_format.h"

namespace quire::platform {

enum class Kind : std::uint8_t { cpu, cuda };
std::string_view to_string(Kind kind);

struct DeviceInfo {
  Kind kind = Kind::cpu;
  int ordinal = 0;
  // cpu: the instruction set level in use (cpu/isa.h: 0 portable, 1 avx2, 2 avx512, 3 amx); cuda: 80, 90, ...
  int arch = 0;
  std::string name;         // "AMD EPYC, avx512" / "NVIDIA H200"
  int cores = 0;            // usable hardware threads or SMs
  bool host_memory = true;  // the host reads and writes device memory as its own
  std::int64_t memory_bytes = 0;
  // The platform's default order of pages, measured (docs/PERFORMANCE.md).
  PageOrder page_order = PageOrder::page_first;
};

struct MemoryInfo {
  std::int64_t total_bytes = 0;  // cgroup or physical limit, whichever is less
  std::int64_t available_bytes = 0;
};

// Device memory with one owner. Freed on destruction; the owner makes sure no stream still uses it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() const = 0;
  virtual std::int64_t bytes() const = 0;
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
};

// The KV arena: addresses are reserved once, backing comes when the ledger closes. A recording stays right
// when the arena grows; its kernels may name addresses that are not backed yet, its copies and fills may not
// (a GPU's driver looks at theirs when the recording is made).
class Arena {
 public:
  virtual ~Arena() = default;
  virtual void* base() const = 0;
  virtual std::int64_t reserved_bytes() const = 0;
  virtual std::int64_t backed_bytes() const = 0;
  // Backs [0, bytes). Once; a later call may only grow. Huge pages where the platform has them.
  virtual Status back(std::int64_t bytes) = 0;
};

// Recorded work over fixed addresses; made by Stream::end_capture, run by Stream::launch.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual std::int64_t nodes() const = 0;
};

class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;  // true when never recorded
  virtual void wait() = 0;        // host blocks
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Copies `bytes`; source and target stay valid until the stream passed this point. The CPU treats
  // device and host memory alike.
  virtual void copy(void* target, const void* source, std::int64_t bytes) = 0;
  virtual void fill(void* target, std::uint8_t byte, std::int64_t bytes) = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;  // later work of this stream waits
  virtual void synchronize() = 0;       // host blocks until all work so far is done
  // Between begin and end, work is recorded, not run. Nothing may allocate or synchronize meanwhile.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual void launch(Graph& graph) = 0;  // the graph outlives the stream passing this point
  // A span is a stretch of work, a step say: spans do not nest. A GPU measures its time by them; the CPU's
  // worker measures itself and takes no notice.
  virtual void begin_span() {}
  virtual void end_span() {}
  // Nanoseconds the device spent inside work since the stream was made (a GPU: inside spans that have ended):
  // what `bench step` calls busy.
  virtual std::int64_t busy_ns() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual MemoryInfo memory() const = 0;
  // `owner` names the ledger line. Contents are undefined (poisoned with NaN in debug builds).
  virtual Result<std::unique_ptr<Buffer>> allocate(std::int64_t bytes, std::string_view owner) = 0;
  // Host memory that the device copies from and to fast (page-locked on a GPU).
  virtual Result<std::unique_ptr<Buffer>> allocate_pinned(std::int64_t bytes, std::string_view owner) = 0;
  virtual Result<std::unique_ptr<Arena>> reserve_arena(std::int64_t bytes) = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
};

// ThreadPlan: the one decision about threads (engine/resolve makes it).
struct ThreadPlan {
  int compute = 1;  // threads of the CPU stream's worker team, the worker included
};

// "cpu", "cuda", "cuda:1". An unknown or absent device is a Result that names those there are.
Result<std::unique_ptr<Device>> open_device(std::string_view name, const ThreadPlan& threads);

// One line per platform of this build, for `--version` and errors: "cuda: not in this build".
std::vector<std::string> platform_lines();

}  // namespace quire::platform
