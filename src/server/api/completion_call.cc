#include "server/api/completion_call.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "server/api/call_fields.h"
#include "server/api/limits.h"
#include "server/api/sampling.h"

namespace quire::server::api {
namespace {

constexpr std::int64_t kDefaultTokens = 16;  // OpenAI's

struct CompletionFields {
  CallFields call;
  SamplingFields sampling;
  std::optional<std::int64_t> max_tokens, logprobs;
  std::optional<bool> echo, add_special_tokens;
  std::vector<TextRequest> prompts;
};

// A text or a list of token ids.
Problem read_prompt(const Json& value, const std::string& path, std::vector<TextRequest>* prompts) {
  TextRequest request;
  if (value.is_string()) {
    request.text = value.get<std::string>();
    if (request.text.empty())
      return invalid_value(path, fmt::format("'{}' is empty: give at least one character", path));
  } else if (value.is_array() && !value.empty()) {
    if (Problem problem = read_token_ids(value, path, &request.ids)) return problem;
  } else {
    return invalid_type(path, fmt::format("'{}' is {}: give a string or token ids", path,
                                          value.is_array() ? "an empty array" : type_name(value)));
  }
  prompts->push_back(std::move(request));
  return {};
}

Problem read_prompts(const Json& value, const std::string& path, std::vector<TextRequest>* prompts) {
  const bool several = value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  if (!several) return read_prompt(value, path, prompts);
  if (value.size() > kRequestsMax)
    return invalid_value(
        path, fmt::format("'{}' has {} prompts: give at most {}", path, value.size(), kRequestsMax));
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (Problem problem = read_prompt(value[i], fmt::format("{}[{}]", path, i), prompts)) return problem;
  }
  return {};
}

// Ignored they would give another answer than the caller wanted.
void visit_completion_elsewhere(Fields& fields) {
  constexpr const char* kWhose = "another route's";
  constexpr const char* kChat = "use /v1/chat/completions";
  for (const char* name : {"messages", "reasoning_effort"}) fields.missing({name, kWhose}, {}, kChat);
  for (const char* name : {"tools", "documents"}) fields.missing({name, kWhose}, {"[]"}, kChat);
  fields.missing({"tool_choice", kWhose}, {R"("none")", R"("auto")"}, kChat);
  fields.missing({"chat_template_kwargs", kWhose}, {"{}"}, kChat);
  fields.missing({"response_format", kWhose}, {R"({"type":"text"})"}, kChat);
  fields.missing({"text", kWhose}, {"{}", R"({"format":{"type":"text"}})"}, "use /v1/responses");
  visit_no_reasoning(fields, "use /v1/responses");
  fields.missing({"include", kWhose}, {"[]"}, "see 'logprobs', or use /v1/responses");
  constexpr const char* kInto = "use /v1/responses, or write it into 'prompt'";
  fields.missing({"input", kWhose}, {}, kInto);
  fields.missing({"instructions", kWhose}, {R"("")"}, kInto);
  std::optional<bool> ignored;
  fields.boolean({"parallel_tool_calls", "no effect: there are no tools here"}, &ignored);
  for (const char* name : {"max_completion_tokens", "max_output_tokens"})
    fields.missing({name, kWhose}, {}, "use 'max_tokens'");
  fields.missing({"top_logprobs", kWhose}, {"0"}, "give the number as 'logprobs'");
}

const char* prompt_schema() {
  static const std::string text = with_limits(R"({"anyOf":[{"type":"string","minLength":1},
  {"type":"array","minItems":1,"maxItems":@RequestsMax,"items":{"type":"string","minLength":1}},
  {"type":"array","minItems":1,"items":{"type":"integer","minimum":0,"maximum":@TokenIdMax}},
  {"type":"array","minItems":1,"maxItems":@RequestsMax,"items":{"type":"array","minItems":1,
   "items":{"type":"integer","minimum":0,"maximum":@TokenIdMax}}}]})");
  return text.c_str();
}

void visit(Fields& fields, CompletionFields& completion) {
  visit_model(fields, completion.call);
  fields.value({"prompt", "one or more prompts, as texts or token ids", true}, prompt_schema(),
               [&](const Json& value, const std::string& path) {
                 return read_prompts(value, path, &completion.prompts);
               });
  fields.integer({"max_tokens", "of the answer; absent: 16. 0 only with echo"}, 0, kTokensMax,
                 &completion.max_tokens);
  fields.integer({"logprobs", "log-probabilities of the tokens, and of so many most likely ones"}, 0,
                 kLogprobsMax, &completion.logprobs);
  fields.boolean({"echo", "the answer begins with the prompt"}, &completion.echo);
  fields.boolean({"add_special_tokens", "the tokenizer's own (BOS) before a text; absent: true"},
                 &completion.add_special_tokens);
  visit_choices(fields, completion.call);
  visit_stream(fields, completion.call);
  visit_temperature(fields, completion.sampling);
  visit_sampling(fields, completion.sampling);
  visit_own_sampling(fields, completion.sampling);
  visit_missing(fields);
  visit_elsewhere(fields);
  visit_completion_elsewhere(fields);
  visit_notes(fields);
}

Problem check_lengths(const CompletionFields& completion, const Call& call) {
  if (completion.max_tokens == 0 && !call.echo)
    return invalid_value("max_tokens", "'max_tokens' is 0 without 'echo': give at least 1");
  if (call.size() > kRequestsMax)
    return invalid_value("n", fmt::format("{} prompts with 'n' {} are {} answers: at most {}",
                                          call.prompts.size(), call.choices, call.size(), kRequestsMax));
  return {};
}

}  // namespace

Problem read_completion(const Json& body, const ModelFacts& facts, Call* call) {
  CompletionFields completion;
  if (Problem problem = read_fields(body, &completion)) return problem;
  if (Problem problem = finish_fields(completion.call, facts, call)) return problem;
  call->kind = Call::Kind::completion;
  call->echo = completion.echo.value_or(false);
  call->logprobs = completion.logprobs.has_value();
  call->draws_seed = !completion.sampling.seed;
  call->prompts = std::move(completion.prompts);
  if (Problem problem = check_lengths(completion, *call)) return problem;
  const bool several = call->prompts.size() > 1;
  for (std::size_t i = 0; i < call->prompts.size(); ++i) {
    TextRequest& request = call->prompts[i];
    if (Problem problem =
            check_prompt_size(request, several ? fmt::format("prompt[{}]", i) : "prompt", facts))
      return problem;
    apply(completion.sampling, facts.defaults, &request);
    request.max_tokens = static_cast<std::int32_t>(completion.max_tokens.value_or(kDefaultTokens));
    request.add_special_tokens = completion.add_special_tokens.value_or(true);
    request.logprobs = static_cast<std::int32_t>(completion.logprobs.value_or(-1));
    if (!call->echo) continue;
    // The text of a prompt of ids is that of its tokens, which scoring reports.
    call->echo_texts.push_back(request.text);
    request.score = call->logprobs || request.text.empty();
    request.score_top = std::max(0, request.logprobs);
    request.answer = request.max_tokens > 0;
    // A prompt alone without anything to score is still a request that ends at once.
    request.score = request.score || !request.answer;
  }
  return {};
}

std::string completion_schema() { return schema_of<CompletionFields>(); }

}  // namespace quire::server::api
