#include "engine/bench_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/quantile.h"
#include "engine/engine_impl.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kWarmSteps = 3;

Status check(const BenchStepRequest& request) {
  if (request.batches.empty() || request.contexts.empty() || request.steps < 1)
    return bad_input("bench step needs at least one batch size, one context and one step");
  for (const std::int32_t batch : request.batches)
    if (batch < 1) return bad_input(fmt::format("batch size {} is below 1", batch));
  for (const std::int32_t context : request.contexts)
    if (context < 2) return bad_input(fmt::format("context {} is below 2 tokens", context));
  for (const std::int32_t chunk : request.chunks)
    if (chunk < 1) return bad_input(fmt::format("chunk {} is below 1 token", chunk));
  return {};
}

// More than a cell takes: the first sequences decode while the last ones' prompts are still in progress.
std::int32_t answer_tokens(const BenchStepRequest& request, std::int32_t batch) {
  return 2 * (kWarmSteps + request.steps) + 4 * batch;
}

// A sequence that ended early would leave less work than the cell says.
Status none_failed(const std::vector<Output>& outputs) {
  for (const Output& output : outputs)
    if (output.finish == Finish::failed) return bad_input(output.error);
  return {};
}

// Steps until every sequence decodes; the last outputs are taken in.
Status run_prompts(EngineImpl& engine, std::int32_t batch, std::vector<Output>& outputs) {
  engine.pretend_prefill(true);
  std::int32_t begun = 0;
  std::vector<bool> seen;
  while (begun < batch) {
    outputs.clear();
    QUIRE_CHECK(engine.step(outputs), "{} of {} sequences decode and nothing is left to do", begun, batch);
    QUIRE_TRY_STATUS(none_failed(outputs));
    for (const Output& output : outputs) {
      if (seen.size() <= output.id) seen.resize(output.id + 1);
      if (!seen[output.id]) ++begun;
      seen[output.id] = true;
    }
  }
  engine.pretend_prefill(false);
  return {};
}

Result<BenchStepCell> measure(EngineImpl& engine, const BenchStepRequest& request, std::int32_t batch,
                              std::int32_t context) {
  std::vector<RequestId> ids;
  for (std::int32_t b = 0; b < batch; ++b) {
    Request one;
    one.prompt.assign(static_cast<std::size_t>(context - 1), 1);
    one.max_tokens = answer_tokens(request, batch);
    QUIRE_TRY(id, engine.submit(std::move(one)));
    ids.push_back(id);
  }
  std::vector<Output> outputs;
  QUIRE_TRY_STATUS(run_prompts(engine, batch, outputs));
  for (std::int32_t s = 0; s < kWarmSteps; ++s) {
    engine.recycle(outputs);
    engine.step(outputs);
    QUIRE_TRY_STATUS(none_failed(outputs));
  }
  const EngineStats before = engine.stats();
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  Clock::time_point last = begin;
  for (std::int32_t s = 0; s < request.steps; ++s) {
    engine.recycle(outputs);
    engine.step(outputs);
    const Clock::time_point now = Clock::now();
    times.push_back(seconds(now - last));
    last = now;
    QUIRE_TRY_STATUS(none_failed(outputs));
  }
  const double wall = seconds(last - begin);
  const EngineStats after = engine.stats();
  for (const RequestId id : ids) engine.cancel(id);
  for (outputs.clear(); engine.step(outputs);) outputs.clear();

  BenchStepCell cell;
  cell.batch = batch;
  cell.context = context;
  const double step = median(times);
  cell.ms = step * 1e3;
  cell.tokens_s = batch / step;
  const double bytes = static_cast<double>(engine.weight_bytes()) +
                       static_cast<double>(engine.kv_bytes_per_token()) * batch * context;
  if (request.read_bytes_s > 0.0) cell.fraction = bytes / request.read_bytes_s / step;
  cell.host_us = (after.host_step_s - before.host_step_s) / request.steps * 1e6;
  cell.gpu_idle_fraction = std::clamp(1.0 - (after.device_busy_s - before.device_busy_s) / wall, 0.0, 1.0);
  return cell;
}

// One prompt of context + chunk tokens of which only the chunk is computed, as a step of its own.
Result<double> time_chunk(EngineImpl& engine, std::int32_t context, std::int32_t chunk) {
  Request one;
  one.prompt.assign(static_cast<std::size_t>(context + chunk), 1);
  one.max_tokens = 1;
  std::vector<Output> outputs;
  engine.pretend_prefill(true);
  QUIRE_TRY(id, engine.submit(std::move(one)));
  const std::int64_t steps = context / engine.chunk_tokens();
  for (std::int64_t s = 0; s < steps; ++s) engine.step(outputs);
  engine.pretend_prefill(false);
  const Clock::time_point begin = Clock::now();
  while (engine.step(outputs)) continue;
  const double time = seconds(Clock::now() - begin);
  QUIRE_CHECK(outputs.size() == 1 && outputs[0].id == id, "{} outputs", outputs.size());
  return time;
}

// Contexts that are whole numbers of the engine's chunk.
std::vector<std::int32_t> chunk_contexts(const BenchStepRequest& request, std::int32_t chunk_tokens) {
  std::vector<std::int32_t> contexts = {0};
  for (const std::int32_t context : request.contexts)
    contexts.push_back(context / chunk_tokens * chunk_tokens);
  std::sort(contexts.begin(), contexts.end());
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  return contexts;
}

Status measure_chunks(EngineImpl& engine, const BenchStepRequest& request,
                      std::vector<BenchStepCell>& cells) {
  if (request.chunks.empty()) return {};
  constexpr std::int32_t kStepsPerTime = 8;  // a chunk takes as long as many decode steps
  const std::int32_t times = std::max(1, request.steps / kStepsPerTime);
  for (const std::int32_t context : chunk_contexts(request, engine.chunk_tokens())) {
    for (const std::int32_t chunk : request.chunks) {
      std::vector<double> measured;
      for (std::int32_t t = 0; t < times; ++t) {
        QUIRE_TRY(time, time_chunk(engine, context, chunk));
        measured.push_back(time);
      }
      const double step = median(measured);
      BenchStepCell cell;
      cell.context = context;
      cell.chunk = chunk;
      cell.ms = step * 1e3;
      cell.tokens_s = chunk / step;
      cells.push_back(cell);
    }
  }
  return {};
}

}  // namespace

Result<std::vector<BenchStepCell>> bench_step(const std::string& model, Options options,
                                              const BenchStepRequest& request) {
  QUIRE_TRY_STATUS(check(request));
  const std::int32_t batch = *std::max_element(request.batches.begin(), request.batches.end());
  if (options.max_running == 0) options.max_running = batch;
  if (options.max_running < batch)
    return bad_input(
        fmt::format("a batch of {0} needs {0} running sequences and --max-running is {1}: use "
                    "--max-running {0}",
                    batch, options.max_running));
  if (!request.chunks.empty()) {
    const std::int32_t chunk = *std::max_element(request.chunks.begin(), request.chunks.end());
    if (options.chunk_tokens == 0) options.chunk_tokens = chunk;
    if (options.chunk_tokens < chunk)
      return bad_input(fmt::format("a chunk of {0} tokens is over --chunk-tokens {1}: use --chunk-tokens {0}",
                                   chunk, options.chunk_tokens));
  }
  options.prefix_cache = "off";
  QUIRE_TRY(first, EngineImpl::open(model, options));
  std::unique_ptr<EngineImpl> engine = std::move(first);
  const std::int32_t longest = *std::max_element(request.contexts.begin(), request.contexts.end());
  const std::int64_t tokens =
      std::int64_t{batch} * (longest + answer_tokens(request, batch) + engine->info().page_size);
  if (options.kv_memory_bytes == 0 && engine->info().kv_capacity_tokens < tokens) {
    // `auto` is meant for serving; here every sequence has its whole context at once.
    options.kv_memory_bytes = engine->kv_bytes_per_token() * (tokens + tokens / 16);
    engine.reset();
    QUIRE_TRY(larger, EngineImpl::open(model, options));
    engine = std::move(larger);
  }
  std::vector<BenchStepCell> cells;
  for (const std::int32_t context : request.contexts) {
    for (const std::int32_t size : request.batches) {
      QUIRE_TRY(cell, measure(*engine, request, size, context));
      cells.push_back(cell);
    }
  }
  QUIRE_TRY_STATUS(measure_chunks(*engine, request, cells));
  return cells;
}

}  // namespace quire::engine
