// Records: the frames as they are, without their checksums (which would keep mutations from the decoders),
// and what replay makes of them: the pages of every accepted call, its gates, and the call itself on both CPU
// rows while it is small.
#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "record/file_reader.h"
#include "record/replay/cache.h"
#include "record/replay/gates.h"
#include "record/replay/runner.h"

namespace {

using namespace quire::record;

constexpr std::int64_t kMostCacheBytes = 16 << 20;
constexpr std::int64_t kMostWork = 1 << 16;  // rows times keys: a run stays in milliseconds

// 2^62 at most: both factors are below 2^31.
std::int64_t work_of(const CallFrame& call) { return std::int64_t{call.total_q} * (call.max_kv + 1); }

void use(const CallFrame& call, const EngineFrame& engine, Cache& cache) {
  const RecordedCall& what = engine.calls[call.call];
  if (!cache.apply(call, what).ok() || work_of(call) > kMostWork || call.batch() > 256) return;
  const bool paged = what.problem.source == quire::attention::KvSource::paged;
  const Gates gates(call, what, paged ? &cache.of(call, what) : nullptr);
  for (std::int32_t row = 0; row < call.total_q; ++row)
    if (gates.sequence_of(row) >= 0) (void)gates.of(gates.sequence_of(row), row, 0, 1.0);
  EngineFrame one_thread = engine;
  one_thread.threads = 1;
  for (const TableRow& row : all_rows()) {
    auto runner = Runner::create(row, one_thread, row.backend.name == "reference", nullptr);
    if (runner.ok() && (*runner)->refusal(call.call, false).empty())
      (void)(*runner)->run(call, cache, nullptr);
  }
}

void read(std::span<const std::byte> file, bool checksums) {
  auto reader = FileReader::parse(file, "fuzz", {.checksums = checksums});
  if (!reader.ok()) return;
  Cache cache(kMostCacheBytes);
  for (auto frame = reader->next(); frame.ok() && *frame; frame = reader->next())
    if (const auto* call = std::get_if<CallFrame>(&**frame)) use(*call, reader->engine(), cache);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  read(file, true);
  // The header has a checksum of its own: a good one, so that what follows it is read.
  if (size < kHeaderBytes) return 0;
  std::vector<std::byte> whole(file.begin(), file.end());
  const std::vector<std::byte> header = encode_header({size, 1, Ended::complete});
  std::copy(header.begin(), header.end(), whole.begin());
  read(whole, false);
  return 0;
}
