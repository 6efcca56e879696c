#include "engine/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/limits.h"
#include "ops/ops.h"
#include "scheduler/request.h"

namespace quire::engine {
namespace {

Status check_ids(const char* what, std::span<const std::int32_t> ids, std::int32_t vocab) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab)
      return bad_input(
          fmt::format("{} {} is token {}: the model has tokens 0 to {}", what, i, ids[i], vocab - 1));
  }
  return {};
}

// NaN fails every comparison, so it is refused too.
Status check_value(const char* what, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return bad_input(fmt::format("{} {} is outside {} to {}", what, value, low, high));
}

Status check_sampling(const Sampling& sampling, std::int32_t vocab) {
  constexpr float kMost = 1e6f;
  QUIRE_TRY_STATUS(check_value("temperature", sampling.temperature, 0.0f, kMost));
  QUIRE_TRY_STATUS(check_value("top_p", sampling.top_p, 0.0f, 1.0f));
  QUIRE_TRY_STATUS(check_value("min_p", sampling.min_p, 0.0f, 1.0f));
  QUIRE_TRY_STATUS(check_value("repetition_penalty", sampling.repetition_penalty, 1e-6f, kMost));
  QUIRE_TRY_STATUS(check_value("frequency_penalty", sampling.frequency_penalty, -kMost, kMost));
  QUIRE_TRY_STATUS(check_value("presence_penalty", sampling.presence_penalty, -kMost, kMost));
  if (sampling.top_k < 0)
    return bad_input(fmt::format("top_k {} is negative: use 0 for off", sampling.top_k));
  if (sampling.logit_bias.size() > static_cast<std::size_t>(ops::kMaxLogitBias))
    return bad_input(
        fmt::format("{} logit biases: at most {}", sampling.logit_bias.size(), ops::kMaxLogitBias));
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token < 0 || token >= vocab)
      return bad_input(
          fmt::format("a logit bias names token {}: the model has tokens 0 to {}", token, vocab - 1));
    if (std::isnan(bias)) return bad_input(fmt::format("the logit bias of token {} is not a number", token));
  }
  return {};
}

// Tokens of an answer that the context has room for. The first one always: its KV is never written, and
// nothing follows it, so a prompt of just the context's length has an answer too.
std::int32_t answer_room(std::int64_t prompt, const RequestLimits& limits) {
  return static_cast<std::int32_t>(std::max<std::int64_t>(limits.max_context - prompt, 1));
}

// What the context leaves of the answer must fit in the pool. An answer without a length of its own ends
// where either is full.
Status check_kv(const Request& request, const RequestLimits& limits) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t most = limits.most_kv_tokens;
  const std::int64_t room = answer_room(prompt, limits);
  const std::int64_t answer = !request.answer           ? 0
                              : request.max_tokens == 0 ? 1
                                                        : std::min<std::int64_t>(request.max_tokens, room);
  // The last token's KV is never written.
  const std::int64_t needed = request.answer ? prompt + answer - 1 : prompt;
  if (needed <= most) return {};
  const std::string asked = !request.answer || request.max_tokens == 0 ? ""
                            : answer < request.max_tokens
                                ? fmt::format(" with {} of answer (what the context of {} leaves of {})",
                                              answer, limits.max_context, request.max_tokens)
                                : fmt::format(" with {} of answer", answer);
  const std::string fewer =
      prompt > most ? fmt::format("shorten the prompt by {}", prompt - most)
                    : fmt::format("ask for {0} new tokens or fewer (--max-tokens {0})", most - prompt + 1);
  return no_resources(fmt::format(
      "a prompt of {} tokens{} needs KV for {}, and the whole cache holds one sequence of at most "
      "{}: {}, or give the KV cache more memory (--kv-memory {} or more)",
      prompt, asked, needed, most, fewer, limits.kv_memory_for(needed)));
}

// Names --max-context only where it may be raised.
Status over_context(std::int64_t prompt, const RequestLimits& limits) {
  const std::int64_t context = limits.max_context;
  const std::int64_t most = limits.model_context;
  const std::string raise =
      context >= most ? ", which is the model's own: "
      : prompt <= most
          ? fmt::format(": raise the limit (--max-context {}, the model has {}) or ", prompt, most)
          : fmt::format(": with the model's own (--max-context {0}) shorten it by {1}, or ", most,
                        prompt - most);
  return bad_input(fmt::format("a prompt of {} tokens is over the context of {}{}shorten it by {}", prompt,
                               context, raise, prompt - context));
}

Status check_lengths(const Request& request, const RequestLimits& limits) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (request.max_tokens < 0)
    return bad_input(fmt::format("max_tokens {} is negative: use 0 for as many as fit", request.max_tokens));
  return prompt > limits.max_context ? over_context(prompt, limits) : check_kv(request, limits);
}

}  // namespace

Status check_request(const Request& request, const RequestLimits& limits) {
  if (request.prompt.empty()) return bad_input("the prompt is empty: give at least one token");
  if (!request.score && !request.answer)
    return bad_input("neither a score nor an answer is asked for: set one of them");
  QUIRE_TRY_STATUS(check_lengths(request, limits));
  QUIRE_TRY_STATUS(check_ids("prompt position", request.prompt, limits.vocab));
  if (request.stop_tokens.size() > static_cast<std::size_t>(kMaxStopTokens))
    return bad_input(fmt::format("{} stop tokens: at most {}", request.stop_tokens.size(), kMaxStopTokens));
  if (request.priority < 0 || request.priority > scheduler::kMaxPriority)
    return bad_input(fmt::format("priority {}: use 0 to {}", request.priority, scheduler::kMaxPriority));
  constexpr double kLeastDeadline = 1e-6;  // the clock's unit
  constexpr double kMostDeadline = 1e9;
  const double deadline = request.deadline_s;
  if (deadline != 0.0 && !(deadline >= kLeastDeadline && deadline <= kMostDeadline))
    return bad_input(fmt::format("a deadline in {} s: use 0 for none, or {} to {}", deadline, kLeastDeadline,
                                 kMostDeadline));
  if (request.score_top < 0 || request.score_top > std::min(kMaxScoreTop, limits.vocab))
    return bad_input(fmt::format("{} most likely tokens per position: use 0 to {}", request.score_top,
                                 std::min(kMaxScoreTop, limits.vocab)));
  if (request.logprobs < -1 || request.logprobs > std::min(kMaxLogprobs, limits.vocab))
    return bad_input(fmt::format("{} most likely tokens per token of the answer: use 0 to {}, or -1 for none",
                                 request.logprobs, std::min(kMaxLogprobs, limits.vocab)));
  return check_sampling(request.sampling, limits.vocab);
}

Live& Requests::add(SequenceId id, Request request, const RequestLimits& limits) {
  Live live;
  live.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
  const std::int32_t room = answer_room(live.prompt_tokens, limits);
  const std::int32_t asked = request.max_tokens;
  live.ends_by_context = request.answer && (asked == 0 || asked > room);
  // The last token's KV is never written, so the pool allows one token more than it holds.
  live.max_new_tokens = !request.answer ? 0
                        : asked == 0    ? std::min(room, limits.most_kv_tokens - live.prompt_tokens + 1)
                                        : std::min(asked, room);
  live.tokens = std::move(request.prompt);
  live.tokens.reserve(static_cast<std::size_t>(live.prompt_tokens + live.max_new_tokens));
  live.request = std::move(request);
  live.submitted = Clock::now();
  return live_.insert_or_assign(id.value, std::move(live)).first->second;
}

Live& Requests::at(SequenceId id) {
  Live* live = find(id);
  QUIRE_CHECK(live != nullptr, "sequence {} is not known", id.value);
  return *live;
}

Live* Requests::find(SequenceId id) {
  const auto found = live_.find(id.value);
  return found == live_.end() ? nullptr : &found->second;
}

}  // namespace quire::engine
