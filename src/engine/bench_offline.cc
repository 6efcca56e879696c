#include "engine/bench_offline.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/quantile.h"
#include "engine/engine_impl.h"
#include "engine/limits.h"

namespace quire::engine {
namespace {

Percentiles percentiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.5), quantile(values, 0.99)};
}

Status check(const BenchOfflineRequest& request, const Options& options) {
  if (request.requests < 1 || request.prompt_tokens < 1 || request.output_tokens < 1)
    return bad_input(fmt::format(
        "bench offline needs at least 1 request, 1 prompt token and 1 output token, not {}, {}, {}",
        request.requests, request.prompt_tokens, request.output_tokens));
  // All wait before the first one runs.
  const std::int64_t most = options.max_waiting > 0 ? options.max_waiting : kMaxWaiting;
  if (request.requests <= most) return {};
  return bad_input(fmt::format(
      "{0} requests are submitted at once and {1} may wait: use --requests {1} or less{2}", request.requests,
      most,
      request.requests <= kMaxWaiting ? fmt::format(", or --max-waiting {} or more", request.requests) : ""));
}

// In this command's words, before anything is loaded.
Status check_context(const std::string& model, const Options& options, const BenchOfflineRequest& request) {
  QUIRE_TRY(surveyed, survey(model, options));
  const std::int64_t most = surveyed.spec.max_context;
  const std::int64_t prompt = request.prompt_tokens;
  const std::int64_t output = request.output_tokens;
  if (prompt + output <= most) return {};
  std::vector<std::string> ways;
  if (most > output) ways.push_back(fmt::format("--prompt {} or less", most - output));
  if (most > prompt) ways.push_back(fmt::format("--output {} or less", most - prompt));
  if (ways.empty()) ways.push_back(fmt::format("--prompt and --output of {} together", most));
  if (options.max_context > 0) ways.emplace_back("a larger --max-context");
  return bad_input(fmt::format("--prompt {} and --output {} are {} tokens and {} context is {}: use {}",
                               prompt, output, prompt + output,
                               options.max_context > 0 ? "this run's" : "the model's", most,
                               fmt::join(ways, ", or ")));
}

// One of the requests, alone in the cache. The last token's KV is never written.
Status check_kv(const EngineImpl& engine, const Options& options, const BenchOfflineRequest& request) {
  const RequestLimits& limits = engine.request_limits();
  const std::int64_t needed = std::int64_t{request.prompt_tokens} + request.output_tokens - 1;
  const std::int64_t most = limits.most_kv_tokens;
  if (needed <= most) return {};
  std::vector<std::string> ways;
  if (options.kv_memory_bytes > 0)
    ways.push_back(fmt::format("--kv-memory {} or more", limits.kv_memory_for(needed)));
  if (most >= request.output_tokens)
    ways.push_back(fmt::format("--prompt {} or less", most + 1 - request.output_tokens));
  if (most >= request.prompt_tokens)
    ways.push_back(fmt::format("--output {} or less", most + 1 - request.prompt_tokens));
  if (ways.empty()) ways.push_back(fmt::format("--prompt and --output of {} together", most + 1));
  return no_resources(
      fmt::format("--prompt {} with --output {} needs KV for {} tokens, and the whole cache holds {}: use {}",
                  request.prompt_tokens, request.output_tokens, needed, most, fmt::join(ways, ", or ")));
}

Status submit_all(EngineImpl& engine, std::int32_t vocab, const BenchOfflineRequest& request) {
  std::mt19937_64 random(request.seed);
  for (std::int32_t r = 0; r < request.requests; ++r) {
    Request one;
    for (std::int32_t t = 0; t < request.prompt_tokens; ++t)
      one.prompt.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab)));
    one.max_tokens = request.output_tokens;
    QUIRE_TRY(id, engine.submit(std::move(one)));
    static_cast<void>(id);
  }
  return {};
}

// Runs everything to its end and notes when each token came.
struct Times {
  std::vector<double> first, between;
};
Result<Times> run(EngineImpl& engine, Clock::time_point begin, const BenchOfflineRequest& request) {
  Times times;
  constexpr std::int64_t kRoom = 1 << 22;  // tokens; past it the list grows
  times.between.reserve(
      static_cast<std::size_t>(std::min(kRoom, std::int64_t{request.requests} * request.output_tokens)));
  std::vector<double> last(static_cast<std::size_t>(request.requests) + 1, -1.0);  // by id; ids start at 1
  std::vector<Output> outputs;
  while (engine.step(outputs)) {
    const double now = seconds(Clock::now() - begin);
    for (const Output& output : outputs) {
      if (output.finish == Finish::failed) return bad_input(output.error);
      for (std::size_t t = 0; t < output.tokens.size(); ++t) {
        double& before = last[output.id];
        before < 0.0 ? times.first.push_back(now) : times.between.push_back(now - before);
        before = now;
      }
    }
    engine.recycle(outputs);
  }
  return times;
}

}  // namespace

Result<BenchOfflineReport> bench_offline(const std::string& model, Options options,
                                         const BenchOfflineRequest& request) {
  QUIRE_TRY_STATUS(check(request, options));
  QUIRE_TRY_STATUS(check_context(model, options, request));
  if (options.max_context == 0) options.max_context = request.prompt_tokens + request.output_tokens;
  QUIRE_TRY(engine, EngineImpl::open(model, options));
  QUIRE_TRY_STATUS(check_kv(*engine, options, request));
  const Clock::time_point begin = Clock::now();
  QUIRE_TRY_STATUS(submit_all(*engine, engine->request_limits().vocab, request));
  QUIRE_TRY(times, run(*engine, begin, request));
  const EngineStats stats = engine->stats();
  BenchOfflineReport report;
  report.prompt_tokens = std::int64_t{request.requests} * request.prompt_tokens;
  report.output_tokens = stats.output_tokens;
  report.load_s = engine->info().load_s;
  report.seconds = seconds(Clock::now() - begin);
  report.tokens_s = static_cast<double>(report.output_tokens) / report.seconds;
  report.ttft_s = percentiles(std::move(times.first));
  report.itl_s = percentiles(std::move(times.between));
  report.steps = stats.steps;
  report.retractions = stats.retractions;
  return report;
}

}  // namespace quire::engine
