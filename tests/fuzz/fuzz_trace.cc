// Traces: what is read can be written and read again as the same, and a small one runs through the scheduler
// without a violation. The same bytes as a calibration.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "simulate/simulation.h"
#include "simulate/trace_file.h"

namespace {

using namespace quire::simulate;

bool small(const Trace& trace) {
  std::int64_t tokens = 0;
  for (const TraceRequest& request : trace.requests) tokens += request.prompt_tokens + request.max_tokens;
  return trace.requests.size() <= 64 && tokens <= 20000;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)fit_bench_step(text, "fuzz");
  const auto trace = parse_trace(text, "fuzz");
  if (!trace.ok()) return 0;
  const std::string again = to_text(*trace);
  const auto parsed = parse_trace(again, "again");
  QUIRE_CHECK(parsed.ok() && to_text(*parsed) == again, "a trace does not come back as it was");
  if (!small(*trace)) return 0;
  SimulationConfig config;
  config.kv_tokens = 4096;
  config.scheduler = {4, 256, 4096, 1000};
  config.audit_every = 100;
  const auto report = simulate(*trace, config);
  QUIRE_CHECK(report.ok() && report->violations.empty(), "a violation");
  return 0;
}
