#include "engine/observer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/limits.h"
#include "engine/parts.h"
#include "engine/requests.h"
#include "engine/upload.h"

namespace quire::engine {
namespace {

Result<record::RecorderOptions> recorder_options(const Options& options, const EngineSpec& spec) {
  record::RecorderOptions record;
  record.folder = options.record;
  record.limit_bytes = options.record_limit_bytes > 0 ? options.record_limit_bytes : kAutoRecordBytes;
  QUIRE_TRY(layers, record::NumberSet::of_option("--record-layers", options.record_layers));
  std::int32_t last = 0;
  for (const model::KvGroup& group : spec.groups)
    for (const std::int32_t layer : group.layers) last = std::max(last, layer);
  if (const std::optional<std::int64_t> absent = layers.beyond(last))
    return bad_input(fmt::format("--record-layers {}: there is no layer {}, the model has 0 to {}",
                                 options.record_layers, *absent, last));
  record.layers = layers;
  QUIRE_TRY(steps, record::NumberSet::of_option("--record-steps", options.record_steps));
  if (steps.empty())
    return bad_input(fmt::format(
        "--record-steps {} stores nothing: leave out --record, or give all, or numbers and ranges "
        "as in 0,3-5",
        options.record_steps));
  record.steps = steps;
  return record;
}

record::EngineFrame engine_frame(const std::string& architecture, const EngineSpec& spec,
                                 const platform::Device& device) {
  record::EngineFrame frame;
  frame.architecture = architecture;
  frame.device = device.info().name;
  frame.threads = spec.threads.compute;
  frame.page_size = spec.page_size();
  frame.max_context = spec.max_context;
  for (const attention::Pick& pick : spec.selection.picks)
    frame.calls.push_back({pick.call.name, std::string(pick.backend->name), pick.call.group,
                           pick.backend->caps.determinism, pick.call.problem});
  return frame;
}

record::RecordedStart start_of(const scheduler::PlanRow& row, const Live& live) {
  const Sampling& sampling = live.request.sampling;
  record::RecordedStart start;
  start.sequence = row.sequence.value;
  start.prompt_tokens = live.prompt_tokens;
  start.max_new_tokens = live.max_new_tokens;
  start.seed = sampling.seed;
  start.sequence_index = live.request.sequence_index;
  start.temperature = sampling.temperature;
  start.top_k = sampling.top_k;
  start.top_p = sampling.top_p;
  start.min_p = sampling.min_p;
  start.repetition_penalty = sampling.repetition_penalty;
  start.frequency_penalty = sampling.frequency_penalty;
  start.presence_penalty = sampling.presence_penalty;
  for (const auto& [token, bias] : sampling.logit_bias) {
    start.bias_token.push_back(token);
    start.bias.push_back(bias);
  }
  return start;
}

record::StepFrame step_frame(const scheduler::StepPlan& plan, Requests& requests) {
  record::StepFrame frame;
  frame.step = plan.step;
  frame.decode_rows = plan.decode_rows;
  frame.verify_rows = plan.verify_rows;
  frame.extend_rows = plan.extend_rows;
  frame.total_q = plan.total_q;
  for (const scheduler::PlanRow& row : plan.rows) {
    frame.rows.push_back({row.sequence.value, row.slot.value, static_cast<std::uint8_t>(row.kind),
                          static_cast<std::uint8_t>(row.input), row.opens_slot, row.yields_token,
                          row.first_row, row.query_begin, row.query_count,
                          static_cast<std::int32_t>(row.visible.tokens),
                          static_cast<std::int32_t>(row.allocated.tokens), row.logits_begin, row.logits_count,
                          row.output_index});
    if (row.opens_slot) frame.starts.push_back(start_of(row, requests.at(row.sequence)));
  }
  for (const kv::TableUpdate& update : plan.updates)
    frame.updates.push_back({update.group.value, update.slot.value, update.entry, update.page.value});
  for (const SequenceId id : plan.retracted) frame.retracted.push_back(id.value);
  return frame;
}

ShadowPlace place_of(const record::Place& place) {
  return {place.error, place.step, place.call, place.layer, place.row, place.head};
}

}  // namespace

Result<std::unique_ptr<Observer>> Observer::create(const Options& options, EngineSpec& spec,
                                                   std::span<const attention::Backend> table,
                                                   platform::Device& device) {
  if (options.record.empty() && options.shadow.empty()) {
    if (options.record_limit_bytes != 0 || !options.record_layers.empty() || !options.record_steps.empty())
      return bad_input("--record-limit, --record-layers and --record-steps need --record DIR");
    return std::unique_ptr<Observer>();
  }
  std::unique_ptr<Observer> observer(new Observer);
  if (!options.record.empty()) {
    QUIRE_TRY(record, recorder_options(options, spec));
    spec.trace.push_back(
        fmt::format("record: steps go to {}, at most {}; recorded steps run eagerly, not by replay of "
                    "graphs, and wait for "
                    "the device at every attention call",
                    record.folder, bytes_to_string(record.limit_bytes)));
    observer->record_ = std::move(record);
  }
  if (!options.shadow.empty()) {
    QUIRE_TRY(wish, record::parse_shadow(options.shadow));
    QUIRE_TRY(shadow, record::Shadow::create(wish, table, spec.selection.picks, device));
    for (const std::string& line : shadow->trace()) spec.trace.push_back(line);
    observer->shadow_ = std::move(shadow);
  }
  return observer;
}

void Observer::list(const EngineSpec& spec, std::span<const attention::Limits> limits, Ledger& ledger) const {
  if (shadow_ == nullptr) return;
  for (std::size_t c = 0; c < limits.size(); ++c)
    ledger.add(fmt::format("shadow plan {}", spec.selection.picks[c].call.name),
               shadow_->plan_bytes(c, limits[c]));
  ledger.add("shadow results", shadow_->result_bytes(limits));
}

// A dense call beyond the first one of a model is made any number of times in a layer (the chunks of a
// latent prefix); the first is made once, before them.
attention::Attention* Observer::tap(std::size_t index, attention::Attention& inner, const EngineSpec& spec) {
  const attention::Call& call = spec.selection.picks[index].call;
  const record::Tap* leader = nullptr;
  for (std::size_t c = 0; c < index && call.problem.source == attention::KvSource::dense; ++c)
    if (leader == nullptr && spec.selection.picks[c].call.problem.source == attention::KvSource::dense)
      leader = taps_[c].get();
  const bool decode = call.problem.phase == attention::Phase::decode;
  taps_.push_back(std::make_unique<record::Tap>(inner, static_cast<std::uint32_t>(index), decode,
                                                spec.groups[static_cast<std::size_t>(call.group)].layers,
                                                leader, step_));
  return taps_.back().get();
}

Status Observer::open(const std::string& architecture, const EngineSpec& spec,
                      std::span<const attention::Limits> limits, platform::Device& device) {
  if (shadow_ != nullptr) {
    std::vector<std::unique_ptr<platform::Buffer>> plans;
    for (std::size_t c = 0; c < limits.size(); ++c) {
      QUIRE_TRY(plan, device.allocate(shadow_->plan_bytes(c, limits[c]), "shadow plan"));
      plans.push_back(std::move(plan));
    }
    QUIRE_TRY(results, device.allocate(shadow_->result_bytes(limits), "shadow results"));
    shadow_->set_memory(std::move(plans), std::move(results));
  }
  if (!record_) return {};
  QUIRE_TRY(recorder, record::Recorder::create(*record_, engine_frame(architecture, spec, device)));
  recorder_ = std::move(recorder);
  return {};
}

bool Observer::begin_step(const Flight& flight, Requests& requests) {
  const scheduler::StepPlan& plan = *flight.plan;
  if (recorder_ != nullptr) recorder_->keep();
  if (recorder_ != nullptr)
    for (const kv::TableUpdate& update : plan.updates)
      recorder_->forget(update.group.value, update.page.value);
  step_.recorder = recorder_ != nullptr && recorder_->wants(plan.step) ? recorder_.get() : nullptr;
  step_.shadow = shadow_ != nullptr && shadow_->wants(plan.step) ? shadow_.get() : nullptr;
  step_.decode_q = flight.launch.decode_rows;
  if (step_.recorder == nullptr && step_.shadow == nullptr) return false;
  for (const auto& tap : taps_) tap->begin_step();
  if (step_.shadow != nullptr) step_.shadow->begin_step(plan.step);
  if (step_.recorder != nullptr) step_.recorder->begin_step(step_frame(plan, requests));
  return true;
}

void Observer::end_step(const Flight& flight, EngineParts& parts) {
  if (step_.recorder != nullptr) {
    const scheduler::StepPlan& plan = *flight.plan;
    outcome_.step = plan.step;
    outcome_.tokens.resize(static_cast<std::size_t>(plan.total_q));
    parts.stream->copy(outcome_.tokens.data(), parts.buffers->tokens,
                       plan.total_q * static_cast<std::int64_t>(sizeof(std::int32_t)));
    parts.stream->synchronize();
    const Results& results = parts.buffers->host_results(static_cast<std::int64_t>(plan.step));
    outcome_.sampled.clear();
    for (std::size_t r = 0; r < plan.rows.size(); ++r)
      outcome_.sampled.push_back(plan.rows[r].yields_token ? results.token[flight.logit_of[r]] : -1);
    recorder_->end_step(outcome_);
  }
  step_ = {};
}

void Observer::report(double step_s, EngineStats& stats) const {
  if (recorder_ != nullptr) {
    const record::FileWriter& file = recorder_->file();
    stats.record = {file.path(), static_cast<std::int64_t>(file.steps()), file.bytes(), file.message()};
  }
  if (shadow_ == nullptr) return;
  const record::ShadowReport& report = shadow_->report();
  stats.shadow = {report.backend,
                  report.steps,
                  report.calls,
                  report.calls_over,
                  report.frobenius,
                  report.gate,
                  place_of(report.absolute),
                  place_of(report.relative),
                  report.seconds,
                  report.first_seconds,
                  report.compare_seconds,
                  step_s > 0 ? (report.seconds + report.compare_seconds) / step_s : 0.0};
}

}  // namespace quire::engine
