#include "engine/step_buffers.h"

#include <algorithm>
#include <cstring>

#include "base/carver.h"
#include "engine/limits.h"

namespace quire::engine {
namespace {

Upload carve_upload(Carver<>& carver, const StepLimits& limits) {
  Upload upload;
  upload.delta_count = carver.take<std::int32_t>(1);
  upload.rows = carver.take<ops::StepRow>(limits.max_batch);
  upload.logit_row = carver.take<std::int32_t>(limits.max_logit_rows());
  upload.logit_hidden = carver.take<std::int32_t>(limits.max_logit_rows());
  upload.extend_offsets = carver.take<std::int32_t>(limits.max_batch + 1);
  upload.deltas = carver.take<ops::TableDelta>(limits.max_deltas);
  upload.literals = carver.take<std::int32_t>(limits.max_total_q);
  upload.score_target = carver.take<std::int32_t>(limits.max_total_q);
  upload.mask_row = carver.take<std::int32_t>(limits.max_logit_rows());
  upload.masks = carver.take<std::uint32_t>(limits.max_batch * ops::mask_words(limits.vocab));
  return upload;
}

Results carve_results(Carver<>& carver, const StepLimits& limits) {
  const std::int64_t top = std::int64_t{limits.max_total_q} * kMaxScoreTop;
  Results results;
  results.token = carver.take<std::int32_t>(limits.max_logit_rows());
  results.score_logprob = carver.take<float>(limits.max_total_q);
  results.score_argmax = carver.take<std::int32_t>(limits.max_total_q);
  results.score_top_id = carver.take<std::int32_t>(top);
  results.score_top_logprob = carver.take<float>(top);
  results.token_logprob = carver.take<float>(limits.max_logit_rows());
  results.token_top_id = carver.take<std::int32_t>(limits.max_logit_rows() * kMaxLogprobs);
  results.token_top_logprob = carver.take<float>(limits.max_logit_rows() * kMaxLogprobs);
  return results;
}

TensorView matrix(Carver<>& carver, DType type, std::int64_t rows, std::int64_t cols) {
  const std::int64_t bytes = rows * cols * static_cast<std::int64_t>(dtype_bytes(type));
  return TensorView::matrix(carver.take<std::byte>(bytes), type, rows, cols);
}

constexpr std::string_view kOwners[] = {"pinned step buffers", "step buffers", "sequence state",
                                        "block tables", "logits"};

}  // namespace

std::int32_t StepLimits::max_logit_rows() const { return std::max(max_batch, kScoreRows); }

void pad_rows(Upload& upload, std::int32_t from, std::int32_t to) {
  for (std::int32_t r = from; r < to; ++r) {
    upload.rows[r] = {0, 1, r, -1};
    upload.logit_row[r] = -1;
    upload.logit_hidden[r] = r;
  }
}

std::int64_t StepBuffers::carve_pinned(void* base) {
  Carver<> carver(base);
  for (Upload& side : host_upload_) side = carve_upload(carver, limits_);
  for (Results& side : host_results_) side = carve_results(carver, limits_);
  for (SlotStart*& side : slot_start_) side = carver.take<SlotStart>(limits_.slots);
  return carver.used();
}

std::int64_t StepBuffers::carve_step(void* base) {
  Carver<> carver(base);
  upload = carve_upload(carver, limits_);
  results = carve_results(carver, limits_);
  tokens = carver.take<std::int32_t>(limits_.max_total_q);
  positions = carver.take<std::int32_t>(limits_.max_total_q);
  q_offsets = carver.take<std::int32_t>(limits_.max_batch + 1);
  kv_lens = carver.take<std::int32_t>(limits_.max_batch);
  for (std::int32_t g = 0; g < limits_.groups; ++g)
    groups[g].write_slot = carver.take<std::int64_t>(limits_.max_total_q);
  hidden = matrix(carver, limits_.compute, limits_.max_total_q, limits_.hidden);
  return carver.used();
}

std::int64_t StepBuffers::carve_state(void* base) {
  Carver<> carver(base);
  state.length = carver.take<std::int32_t>(limits_.slots);
  state.last_token = carver.take<std::int32_t>(limits_.slots);
  state.prompt_length = carver.take<std::int32_t>(limits_.slots);
  state.history_stride = limits_.history_stride();
  state.history = carver.take<std::int32_t>(limits_.slots * limits_.history_stride());
  params = carver.take<ops::SamplingParams>(limits_.slots);
  bias = carver.take<ops::LogitBias>(std::int64_t{limits_.slots} * ops::kMaxLogitBias);
  return carver.used();
}

std::int64_t StepBuffers::carve_tables(void* base) {
  Carver<> carver(base);
  for (std::int32_t g = 0; g < limits_.groups; ++g) {
    groups[g].table_stride = limits_.table_stride();
    groups[g].page_size = limits_.page_size;
    groups[g].slot_table = carver.take<std::uint32_t>(limits_.slots * limits_.table_stride());
    groups[g].row_table = carver.take<std::uint32_t>(limits_.max_batch * limits_.table_stride());
  }
  return carver.used();
}

std::int64_t StepBuffers::carve_logits(void* base) {
  Carver<> carver(base);
  logit_input = matrix(carver, limits_.compute, limits_.max_logit_rows(), limits_.hidden);
  logits = matrix(carver, DType::f32, limits_.max_logit_rows(), limits_.vocab);
  return carver.used();
}

void StepBuffers::plan(const StepLimits& limits, bool host_memory, Ledger& ledger) {
  StepBuffers sizes(limits);
  const std::int64_t pinned = sizes.carve_pinned(nullptr);
  host_memory ? ledger.add(std::string(kOwners[0]), pinned)
              : ledger.add_host(std::string(kOwners[0]), pinned);
  ledger.add(std::string(kOwners[1]), sizes.carve_step(nullptr));
  ledger.add(std::string(kOwners[2]), sizes.carve_state(nullptr));
  ledger.add(std::string(kOwners[3]), sizes.carve_tables(nullptr));
  ledger.add(std::string(kOwners[4]), sizes.carve_logits(nullptr));
}

Result<std::unique_ptr<StepBuffers>> StepBuffers::make(const StepLimits& limits, platform::Device& device) {
  std::unique_ptr<StepBuffers> made(new StepBuffers(limits));
  using Carve = std::int64_t (StepBuffers::*)(void*);
  constexpr Carve kCarves[] = {&StepBuffers::carve_pinned, &StepBuffers::carve_step,
                               &StepBuffers::carve_state, &StepBuffers::carve_tables,
                               &StepBuffers::carve_logits};
  for (std::size_t i = 0; i < std::size(kCarves); ++i) {
    const std::int64_t bytes = ((*made).*kCarves[i])(nullptr);
    QUIRE_TRY(memory,
              i == 0 ? device.allocate_pinned(bytes, kOwners[i]) : device.allocate(bytes, kOwners[i]));
    made->memory_[i] = std::move(memory);
    ((*made).*kCarves[i])(made->memory_[i]->data());
  }
  return made;
}

void StepBuffers::clear(platform::Stream& stream, bool everything) {
  // The first is the pinned side, the host's own.
  if (everything) std::memset(memory_[0]->data(), 0, static_cast<std::size_t>(memory_[0]->bytes()));
  for (std::size_t i = 1; everything && i < memory_.size(); ++i)
    stream.fill(memory_[i]->data(), 0, memory_[i]->bytes());
  for (std::int32_t* zero : {state.length, state.last_token, state.prompt_length})
    stream.fill(zero, 0, limits_.slots * static_cast<std::int64_t>(sizeof(std::int32_t)));
  stream.fill(state.history, 0, limits_.history_stride() * static_cast<std::int64_t>(sizeof(std::int32_t)));
  stream.fill(params, 0, sizeof(ops::SamplingParams));
  for (std::int32_t g = 0; g < limits_.groups; ++g)
    stream.fill(groups[g].slot_table, 0,
                limits_.table_stride() * static_cast<std::int64_t>(sizeof(std::uint32_t)));
}

}  // namespace quire::engine
