#include "engine/bench_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/limits.h"
#include "engine/parts.h"

namespace quire::engine {
namespace {

// The largest of 0..high that fits, if 0 does and those below one that fits fit too.
template <class Fits>
std::int64_t largest(std::int64_t high, Fits fits) {
  std::int64_t low = 0;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    fits(middle) ? low = middle : high = middle - 1;
  }
  return low;
}

// Tokens of prompt and output of the longest sequence; the last one's KV is never written.
std::int64_t length(const BenchStepRequest& request, std::int64_t batch, std::int64_t context,
                    std::int64_t chunk_tokens) {
  std::int64_t longest = 0;
  for (const CellSequence& one : cell_sequences(request, batch, context, chunk_tokens))
    longest = std::max(longest, one.prompt + one.answer);
  return longest;
}

std::int32_t most(const std::vector<std::int32_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

Status check_values(const BenchStepRequest& request) {
  if (request.batches.empty() || request.contexts.empty() || request.steps < 1)
    return bad_input("bench step needs at least one batch size, one context and one step");
  const auto within = [](const char* flag, const std::vector<std::int32_t>& values, std::int32_t low,
                         std::int32_t high) -> Status {
    for (const std::int32_t value : values)
      if (value < low || value > high)
        return bad_input(fmt::format("{} {} is outside {} to {}", flag, value, low, high));
    return {};
  };
  QUIRE_TRY_STATUS(within("--batch", request.batches, 1, kMaxRunning));
  QUIRE_TRY_STATUS(within("--context", request.contexts, 2, kMostBenchContext));
  return within("--chunk", request.chunks, 1, kMaxChunkTokens);
}

// The largest batch behind the longest context needs the most of everything, and so stands for all cells.
class Needs {
 public:
  Needs(const BenchStepRequest& request, const EngineSurvey& engine, bool context_given)
      : request_(request), engine_(engine), context_given_(context_given) {}

  Status check_context() const {
    const std::int64_t limit = engine_.spec.max_context;
    const std::int64_t needed = length(request_, batch_, context_, chunk_tokens());
    const std::string whose =
        fmt::format("{} context is {}", context_given_ ? "this run's" : "the model's", limit);
    const std::string larger = context_given_ ? ", or a larger --max-context" : "";
    if (needed > limit) {
      std::vector<std::string> ways;
      add_way(ways, "--context", 2, largest(context_, [&](std::int64_t context) {
                return length(request_, batch_, context, chunk_tokens()) <= limit;
              }));
      add_way(ways, "--steps", 1, request_.steps - (needed - limit));
      add_way(ways, "--batch", 1, largest(batch_, [&](std::int64_t batch) {
                return length(request_, batch, context_, chunk_tokens()) <= limit;
              }));
      return bad_input(
          fmt::format("a batch of {} at a context of {} reaches {} tokens in the steps before and with the "
                      "{} measured ones, and {}: use {}{}",
                      batch_, context_, needed, request_.steps, whose,
                      join(ways, "fewer --steps and a smaller --batch"), larger));
    }
    const std::int64_t prompt = chunk_prompt(context_);
    if (prompt < limit) return {};
    return bad_input(fmt::format(
        "a chunk of {} behind {} tokens and a token of answer are {} tokens, and {}: use --chunk {} or "
        "less{}",
        chunk_, prompt - chunk_, prompt + 1, whose, limit - 1 - context_, larger));
  }

  bool held() const {
    return holds(engine_.kv, batch_, kv_tokens(batch_, context_), chunk_tokens()) &&
           holds(engine_.kv, 1, chunk_prompt(context_), chunk_tokens());
  }
  std::int64_t kv_memory() const {
    return std::max(kv_memory_for(engine_.spec, kv_tokens(batch_, context_), batch_),
                    kv_memory_for(engine_.spec, chunk_prompt(context_)));
  }

  // The arena of the survey is what --kv-memory gave.
  Status over_given(std::int64_t bytes) const {
    return over(fmt::format("--kv-memory is {}", bytes_to_string(bytes)),
                {fmt::format("--kv-memory {} or more", kv_memory())},
                [this](std::int64_t sequences, std::int64_t tokens) {
                  return holds(engine_.kv, sequences, tokens, chunk_tokens());
                });
  }
  // `left`: bytes that the device has for an arena.
  Status over_device(std::int64_t left) const {
    return over(fmt::format("{} of memory are left for it", bytes_to_string(left)), {},
                [&](std::int64_t sequences, std::int64_t tokens) {
                  return kv_memory_for(engine_.spec, tokens, sequences) <= left;
                });
  }

 private:
  // fits(sequences, tokens of each).
  template <class Fits>
  Status over(const std::string& whose, std::vector<std::string> ways, Fits fits) const {
    const std::int64_t tokens = kv_tokens(batch_, context_);
    if (fits(batch_, tokens)) {
      const std::int64_t prompt = chunk_prompt(context_);
      add_way(ways, "--chunk", 1,
              largest(chunk_, [&](std::int64_t chunk) { return fits(1, context_ + chunk); }));
      return no_resources(fmt::format(
          "a chunk of {} behind {} tokens needs KV for {}, {} in pages of {} tokens, and {}: use {}", chunk_,
          prompt - chunk_, prompt, bytes_to_string(kv_memory_for(engine_.spec, prompt)),
          engine_.spec.page_size(), whose, join(ways, "a shorter --context")));
    }
    add_way(ways, "--batch", 1,
            largest(batch_, [&](std::int64_t batch) { return fits(batch, kv_tokens(batch, context_)); }));
    add_way(ways, "--context", 2, largest(context_, [&](std::int64_t context) {
              return fits(batch_, kv_tokens(batch_, context));
            }));
    return no_resources(
        fmt::format("a batch of {} needs KV for {} tokens of each of its sequences at once, {} in pages of "
                    "{} tokens with one to spare for each, and {}: use {}",
                    batch_, tokens, bytes_to_string(kv_memory_for(engine_.spec, tokens, batch_)),
                    engine_.spec.page_size(), whose, join(ways, "a smaller --batch and --context")));
  }

  static void add_way(std::vector<std::string>& ways, const char* flag, std::int64_t least,
                      std::int64_t value) {
    if (value >= least) ways.push_back(fmt::format("{} {} or less", flag, value));
  }
  static std::string join(const std::vector<std::string>& ways, const char* otherwise) {
    return ways.empty() ? otherwise : fmt::format("{}", fmt::join(ways, ", or "));
  }

  std::int64_t chunk_tokens() const { return engine_.spec.chunk_tokens; }
  std::int64_t kv_tokens(std::int64_t batch, std::int64_t context) const {
    return length(request_, batch, context, chunk_tokens()) - 1;
  }
  // The longest prompt of a chunk's cell; 0: there is none.
  std::int64_t chunk_prompt(std::int64_t context) const {
    return chunk_ == 0 ? 0 : context / chunk_tokens() * chunk_tokens() + chunk_;
  }
  const BenchStepRequest& request_;
  const EngineSurvey& engine_;
  bool context_given_;
  std::int64_t batch_ = most(request_.batches);
  std::int64_t context_ = most(request_.contexts);
  std::int64_t chunk_ = most(request_.chunks);
};

}  // namespace

std::vector<CellSequence> cell_sequences(const BenchStepRequest& request, std::int64_t batch,
                                         std::int64_t context, std::int64_t chunk_tokens) {
  std::vector<CellSequence> sequences(static_cast<std::size_t>(batch));
  std::int64_t later = 0;  // tokens of the prompts behind this one
  for (auto one = sequences.rbegin(); one != sequences.rend(); ++one) {
    const std::int64_t steps = (later + chunk_tokens - 1) / chunk_tokens;
    one->prompt = std::max<std::int64_t>(1, context - 1 - steps);
    one->answer = steps + kWarmSteps + request.steps + 1;
    later += one->prompt;
  }
  return sequences;
}

Status provide(const std::string& model, const BenchStepRequest& request, Options& options) {
  QUIRE_TRY_STATUS(check_values(request));
  const std::int32_t batch = most(request.batches);
  if (options.max_running == 0) options.max_running = batch;
  if (options.max_running < batch)
    return bad_input(
        fmt::format("a batch of {0} needs {0} running sequences and --max-running is {1}: use --max-running "
                    "{0}, or --batch {1} or less",
                    batch, options.max_running));
  const std::int32_t chunk = most(request.chunks);
  if (options.chunk_tokens == 0) options.chunk_tokens = chunk;
  if (options.chunk_tokens < chunk)
    return bad_input(fmt::format(
        "a chunk of {0} tokens is over --chunk-tokens {1}: use --chunk-tokens {0}, or --chunk {1} or less",
        chunk, options.chunk_tokens));
  QUIRE_TRY(engine, survey(model, options));
  const Needs needs(request, engine, options.max_context > 0);
  QUIRE_TRY_STATUS(needs.check_context());
  if (needs.held()) return {};
  if (options.kv_memory_bytes > 0) return needs.over_given(options.kv_memory_bytes);
  // `auto` is meant for serving; here every sequence has its whole context at once.
  const std::int64_t left = engine.available_bytes - engine.ledger.private_bytes() + engine.kv.bytes;
  options.kv_memory_bytes = needs.kv_memory();
  return options.kv_memory_bytes <= left ? Status() : needs.over_device(left);
}

}  // namespace quire::engine
