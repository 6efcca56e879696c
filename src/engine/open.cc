// From a path and options to an engine: the parts, the pool and the scheduler over them, and the report.
#include <fmt/format.h>

#include <utility>

#include "engine/engine_impl.h"
#include "engine/limits.h"

namespace quire::engine {

Result<std::unique_ptr<EngineImpl>> EngineImpl::open(const std::string& model, const Options& options,
                                                     std::span<const attention::Backend> table) {
  const Clock::time_point begin = Clock::now();
  std::unique_ptr<EngineImpl> engine(new EngineImpl);
  QUIRE_TRY(parts, assemble(model, options, table));
  engine->parts_ = std::move(parts);
  QUIRE_TRY_STATUS(engine->make_scheduler());
  engine->fill_info(seconds_since(begin));
  return engine;
}

EngineImpl::~EngineImpl() {
  // Steps in flight read what the members own.
  if (parts_ && parts_->stream) parts_->stream->synchronize();
}

Status EngineImpl::make_scheduler() {
  const EngineSpec& spec = parts_->spec;
  kv::PoolConfig config;
  config.plan = parts_->kv.slabs;
  config.slabs = parts_->kv.slab_count;
  for (std::size_t g = 0; g < spec.groups.size(); ++g)
    config.groups.push_back({spec.groups[g].name, parts_->kv.rules[g]});
  config.record_freed = kPoison && spec.selection.order == PageOrder::page_first;
  QUIRE_TRY(pool, kv::PagePool::create(std::move(config)));
  pool_ = std::move(pool);
  QUIRE_TRY(scheduler, scheduler::Scheduler::create({.max_running = spec.max_running,
                                                     .chunk_tokens = spec.chunk_tokens,
                                                     .max_context = spec.max_context,
                                                     .max_waiting = spec.max_waiting,
                                                     .policy = spec.schedule,
                                                     .target_step_us = spec.target_step_us,
                                                     .cache = {.enabled = spec.prefix_cache,
                                                               .policy = spec.eviction,
                                                               .copy_min_tokens = kCopyTokens,
                                                               .record_events = spec.prefix_cache}},
                                                    *pool_));
  scheduler_ = std::move(scheduler);
  QUIRE_CHECK(scheduler_->most_updates() <= parts_->buffers->limits().max_deltas, "{} updates, {} deltas",
              scheduler_->most_updates(), parts_->buffers->limits().max_deltas);
  request_limits_ = {parts_->buffers->limits().vocab, spec.max_context, parts_->model->spec().max_context,
                     scheduler_->most_kv_tokens(),
                     [this](std::int64_t tokens) { return kv_memory_for(parts_->spec, tokens); }};
  for (Flight& flight : flights_) flight.reserve(spec.max_running);
  const auto rows = static_cast<std::size_t>(spec.max_running);
  row_results_.reserve(rows);
  spare_tokens_.reserve(2 * rows);
  spare_logprobs_.reserve(2 * rows);
  spare_tops_.reserve(2 * rows);
  return {};
}

void EngineImpl::fill_info(double load_s) {
  const EngineSpec& spec = parts_->spec;
  info_.architecture = parts_->model->spec().architecture;
  info_.device = parts_->device->info().name;
  info_.page_size = spec.page_size();
  info_.max_context = spec.max_context;
  info_.max_running = spec.max_running;
  info_.kv_capacity_tokens = parts_->kv.capacity_tokens;
  info_.determinism = std::string(attention::to_string(parts_->spec.determinism));
  for (const attention::Pick& pick : spec.selection.picks)
    info_.calls.push_back({pick.call.name, std::string(pick.backend->name)});
  info_.ledger = parts_->ledger.lines();
  info_.notes = parts_->notes;
  info_.trace = spec.trace;
  info_.load_s = load_s;
}

std::int64_t EngineImpl::weight_bytes() const {
  return parts_->ledger.bytes_of("weights in the file") + parts_->ledger.bytes_of("weights") -
         parts_->model->lookup_bytes();
}

std::int64_t EngineImpl::kv_bytes_per_token() const {
  std::int64_t bytes = 0;
  for (const KvLayout& layout : parts_->kv.layouts) bytes += layout.bytes_per_token();
  return bytes;
}

}  // namespace quire::engine
