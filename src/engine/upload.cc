#include "engine/upload.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/limits.h"

namespace quire::engine {
namespace {

using scheduler::Input;
using scheduler::PlanRow;
using scheduler::StepPlan;

// Table entries that got a page. Released ones keep their stale id on the device: no row sees a key of
// theirs, and what is not seen is never dereferenced (attention/contract.h).
std::int32_t fill_deltas(const StepPlan& plan, EngineParts& parts, Upload& up) {
  std::int32_t count = 0;
  for (const kv::TableUpdate& update : plan.updates) {
    if (update.page == kPaddingPage) continue;
    QUIRE_CHECK(count < parts.buffers->limits().max_deltas, "step {} has over {} new pages", plan.step,
                count);
    up.deltas[count++] = {static_cast<std::int32_t>(update.group.value),
                          static_cast<std::int32_t>(update.slot.value),
                          static_cast<std::int32_t>(update.entry), update.page.value};
  }
  *up.delta_count = count;
  return count;
}

// Penalties count the tokens that came from the cache too.
void upload_history(const PlanRow& row, std::int64_t step, EngineParts& parts, Live& live) {
  const Sampling& sampling = live.request.sampling;
  const bool penalties = sampling.repetition_penalty != 1.0f || sampling.frequency_penalty != 0.0f ||
                         sampling.presence_penalty != 0.0f;
  if (row.query_begin == 0 || !penalties) return;
  const ops::SequenceState& state = parts.buffers->state;
  parts.stream->copy(state.history + row.slot.value * state.history_stride, live.tokens.data(),
                     row.query_begin * static_cast<std::int64_t>(sizeof(std::int32_t)));
  live.history_step = static_cast<std::uint64_t>(step) + 1;
}

void open_slot(const PlanRow& row, std::int64_t step, EngineParts& parts, const Live& live) {
  const auto slot = static_cast<std::int32_t>(row.slot.value);
  StepBuffers& buffers = *parts.buffers;
  SlotStart& start = buffers.slot_start(step, slot);
  const Sampling& sampling = live.request.sampling;
  const auto biases = static_cast<std::int32_t>(sampling.logit_bias.size());
  start.params = ops::SamplingParams{.temperature = sampling.temperature,
                                     .top_k = sampling.top_k,
                                     .top_p = sampling.top_p,
                                     .min_p = sampling.min_p,
                                     .repetition_penalty = sampling.repetition_penalty,
                                     .frequency_penalty = sampling.frequency_penalty,
                                     .presence_penalty = sampling.presence_penalty,
                                     .seed = sampling.seed,
                                     .sequence_index = live.request.sequence_index,
                                     .bias_count = biases};
  start.length = row.query_begin;
  start.prompt_length = live.prompt_tokens;
  platform::Stream& stream = *parts.stream;
  stream.copy(buffers.params + slot, &start.params, sizeof(start.params));
  stream.copy(buffers.state.length + slot, &start.length, sizeof(start.length));
  stream.copy(buffers.state.prompt_length + slot, &start.prompt_length, sizeof(start.prompt_length));
  if (biases == 0) return;
  for (std::int32_t i = 0; i < biases; ++i)
    start.bias[i] = {sampling.logit_bias[static_cast<std::size_t>(i)].first,
                     sampling.logit_bias[static_cast<std::size_t>(i)].second};
  stream.copy(buffers.bias + std::int64_t{slot} * ops::kMaxLogitBias, start.bias,
              biases * static_cast<std::int64_t>(sizeof(ops::LogitBias)));
}

// The row's known tokens go up, or none: then it takes the last output of its slot.
std::int32_t fill_literals(const PlanRow& row, const Live& live, std::int32_t used, Upload& up) {
  if (row.input == Input::last_output) return -1;
  std::memcpy(up.literals + used, live.tokens.data() + row.query_begin,
              static_cast<std::size_t>(row.query_count) * sizeof(std::int32_t));
  return used;
}

void fill_targets(const PlanRow& row, const Live& live, Flight& flight, Upload& up) {
  if (!scores(row, live)) return;
  const std::int32_t begin = first_logit_row(row);
  for (std::int32_t i = 0; i < row.logits_count; ++i) {
    const std::int32_t next = row.logits_begin + i + 1;
    up.score_target[begin + i] = next < live.prompt_tokens ? live.tokens[static_cast<std::size_t>(next)] : -1;
  }
  flight.scored_end = begin + row.logits_count;
  if (live.request.score_top > 0) flight.score_top_end = flight.scored_end * kMaxScoreTop;
}

// Logits for sampling: in a decode step every row has them (the recorded work is the same whatever the rows
// want), otherwise only rows that yield a token.
void fill_logit_rows(const StepPlan& plan, Flight& flight, Upload& up) {
  const bool decode_step = flight.launch.extend_rows == 0;
  std::int32_t count = 0;
  for (std::size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    flight.logit_of.push_back(row.yields_token ? count : -1);
    if (!decode_step && !row.yields_token) continue;
    up.logit_row[count] = row.yields_token ? static_cast<std::int32_t>(r) : -1;
    up.logit_hidden[count++] = row.first_row + row.query_count - 1;
  }
  // The recorded step is for a bucket of rows; of the others nobody has one.
  if (decode_step) {
    pad_rows(up, count, flight.launch.decode_rows);
    count = flight.launch.decode_rows;
  }
  flight.launch.logit_rows = count;
}

void fill_extends(const StepPlan& plan, Flight& flight, Upload& up) {
  flight.launch.extend_rows = plan.extend_rows;
  std::int32_t offset = 0;
  std::int32_t index = 0;
  for (std::size_t r = static_cast<std::size_t>(plan.decode_rows); r < plan.rows.size(); ++r, ++index) {
    const PlanRow& row = plan.rows[r];
    up.extend_offsets[index] = offset;
    offset += row.query_count;
    flight.extend_prefix.push_back(row.query_begin);
    flight.extend_q_len.push_back(row.query_count);
    flight.launch.longest_extend = std::max(flight.launch.longest_extend, row.query_count);
  }
  up.extend_offsets[index] = offset;
  flight.launch.extend_prefix = flight.extend_prefix;
  flight.launch.extend_q_len = flight.extend_q_len;
}

}  // namespace

void Flight::reserve(std::int32_t max_batch) {
  const auto rows = static_cast<std::size_t>(max_batch);
  logit_of.reserve(rows);
  extend_prefix.reserve(rows);
  extend_q_len.reserve(rows);
}

bool scores(const PlanRow& row, const Live& live) {
  return live.request.score && row.logits_count > 0 && row.logits_begin < live.prompt_tokens;
}

std::int32_t first_logit_row(const PlanRow& row) {
  return row.first_row + row.logits_begin - row.query_begin;
}

void upload_step(const StepPlan& plan, EngineParts& parts, Requests& requests, Flight& flight) {
  const auto step = static_cast<std::int64_t>(plan.step);
  Upload& up = parts.buffers->host_upload(step);
  flight.plan = &plan;
  flight.logit_of.clear();
  flight.extend_prefix.clear();
  flight.extend_q_len.clear();
  flight.launch = StepLaunch{};
  flight.scored_end = flight.score_top_end = flight.masks = 0;
  flight.logprobs = -1;
  flight.guided = false;

  const std::int32_t deltas = fill_deltas(plan, parts, up);
  std::int32_t literals = 0;
  for (std::size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    Live& live = requests.at(row.sequence);
    if (row.opens_slot) open_slot(row, step, parts, live);
    if (row.opens_slot) upload_history(row, step, parts, live);
    const std::int32_t literal = fill_literals(row, live, literals, up);
    if (literal >= 0) literals += row.query_count;
    up.rows[r] = {static_cast<std::int32_t>(row.slot.value), row.query_count, row.first_row, literal};
    fill_targets(row, live, flight, up);
    if (row.yields_token) {
      flight.logprobs = std::max(flight.logprobs, live.request.logprobs);
      flight.guided = flight.guided || live.request.guide != nullptr;
    }
  }
  fill_extends(plan, flight, up);
  flight.launch.decode_rows =
      plan.extend_rows > 0 ? plan.decode_rows : parts.executor->bucket(plan.decode_rows);
  flight.launch.total_q = plan.extend_rows > 0 ? plan.total_q : flight.launch.decode_rows;
  fill_logit_rows(plan, flight, up);

  const void* end = up.deltas + deltas;
  if (literals > 0) end = up.literals + literals;
  if (flight.scored_end > 0) end = up.score_target + flight.scored_end;
  parts.stream->copy(parts.buffers->upload.delta_count, up.delta_count,
                     static_cast<const char*>(end) - reinterpret_cast<const char*>(up.delta_count));
}

void upload_masks(EngineParts& parts, Requests& requests, Flight& flight) {
  Upload& up = parts.buffers->host_upload(static_cast<std::int64_t>(flight.plan->step));
  const auto words = static_cast<std::size_t>(ops::mask_words(parts.buffers->limits().vocab));
  std::fill_n(up.mask_row, flight.launch.logit_rows, -1);
  for (std::size_t r = 0; r < flight.plan->rows.size(); ++r) {
    const PlanRow& row = flight.plan->rows[r];
    Live& live = requests.at(row.sequence);
    if (!row.yields_token || live.request.guide == nullptr) continue;
    const std::span<std::uint32_t> mask(up.masks + static_cast<std::size_t>(flight.masks) * words, words);
    if (!live.request.guide->mask(mask)) continue;
    live.dead_end = std::all_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word == 0; });
    up.mask_row[flight.logit_of[r]] = flight.masks++;
  }
  if (flight.masks == 0) return;
  const void* end = up.masks + static_cast<std::size_t>(flight.masks) * words;
  parts.stream->copy(parts.buffers->upload.mask_row, up.mask_row,
                     static_cast<const char*>(end) - reinterpret_cast<const char*>(up.mask_row));
}

}  // namespace quire::engine
