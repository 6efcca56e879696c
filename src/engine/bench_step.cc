#include "engine/bench_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/quantile.h"
#include "engine/bench_needs.h"
#include "engine/engine_impl.h"

namespace quire::engine {
namespace {

Status none_failed(const std::vector<Output>& outputs) {
  for (const Output& output : outputs)
    if (output.finish == Finish::failed) return bad_input(output.error);
  return {};
}

// A step that decoded other rows is none of the cell, whatever kept them away.
Status all_decoded(const EngineImpl& engine, const std::vector<Output>& outputs, std::int32_t batch) {
  QUIRE_TRY_STATUS(none_failed(outputs));
  std::size_t rows = 0;
  for (const Output& output : outputs) rows += output.tokens.size();
  if (rows == static_cast<std::size_t>(batch)) return {};
  return no_resources(
      fmt::format("a step decoded {} sequences and not the batch of {}, so it is no measurement of it ({} "
                  "retractions): use more --kv-memory or a smaller --batch",
                  rows, batch, engine.stats().retractions));
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
  for (const CellSequence& sequence : cell_sequences(request, batch, context, engine.chunk_tokens())) {
    Request one;
    one.prompt.assign(static_cast<std::size_t>(sequence.prompt), 1);
    one.max_tokens = static_cast<std::int32_t>(sequence.answer);
    QUIRE_TRY(id, engine.submit(std::move(one)));
    ids.push_back(id);
  }
  std::vector<Output> outputs;
  QUIRE_TRY_STATUS(run_prompts(engine, batch, outputs));
  for (std::int32_t s = 0; s < kWarmSteps; ++s) {
    engine.recycle(outputs);
    engine.step(outputs);
    QUIRE_TRY_STATUS(all_decoded(engine, outputs, batch));
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
    QUIRE_TRY_STATUS(all_decoded(engine, outputs, batch));
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
  const std::int64_t before = engine.stats().steps;
  const Clock::time_point begin = Clock::now();
  while (engine.step(outputs)) continue;
  const double time = seconds(Clock::now() - begin);
  QUIRE_TRY_STATUS(none_failed(outputs));
  QUIRE_CHECK(outputs.size() == 1 && outputs[0].id == id, "{} outputs", outputs.size());
  QUIRE_CHECK(engine.stats().steps == before + 1, "a chunk of {} took {} steps", chunk,
              engine.stats().steps - before);
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
  options.prefix_cache = "off";
  QUIRE_TRY_STATUS(provide(model, request, options));
  QUIRE_TRY(engine, EngineImpl::open(model, options));
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
