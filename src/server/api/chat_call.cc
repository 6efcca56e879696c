#include "server/api/chat_call.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/call_fields.h"
#include "server/api/limits.h"
#include "server/api/messages.h"
#include "server/api/sampling.h"
#include "server/api/tools.h"

namespace quire::server::api {
namespace {

struct ChatFields {
  CallFields call;
  SamplingFields sampling;
  ToolFields tools;
  FormatFields format;
  Json messages, documents, kwargs = Json::object();
  std::optional<std::int64_t> max_tokens, max_completion_tokens, top_logprobs;
  std::optional<bool> logprobs;
  std::optional<std::string> reasoning_effort;
};

// Ignored they would give another answer than the caller wanted.
void visit_chat_elsewhere(Fields& fields) {
  constexpr const char* kWhose = "another route's";
  for (const char* name : {"prompt", "input"}) fields.missing({name, kWhose}, {}, "write it as 'messages'");
  fields.missing({"instructions", kWhose}, {R"("")"}, "write it as 'messages'");
  fields.missing({"max_output_tokens", kWhose}, {}, "use 'max_completion_tokens'");
  fields.missing({"text", kWhose}, {"{}", R"({"format":{"type":"text"}})"}, "use 'response_format'");
  visit_no_reasoning(fields, "use 'reasoning_effort'");
  fields.missing({"include", kWhose}, {"[]"}, "see 'logprobs', or use /v1/responses");
  fields.missing({"echo", kWhose}, {"false"}, "use /v1/completions");
  fields.missing({"add_special_tokens", "the chat template's own; false is taken"}, {"false"},
                 "use /v1/completions");
}

void visit(Fields& fields, ChatFields& chat) {
  visit_model(fields, chat.call);
  fields.value(
      {"messages", "the conversation", true}, messages_schema(),
      [&](const Json& value, const std::string& path) { return read_messages(value, path, &chat.messages); });
  fields.integer({"max_completion_tokens", "of the answer; absent: as many as the context leaves"}, 1,
                 kTokensMax, &chat.max_completion_tokens);
  fields.integer({"max_tokens", "the older name of max_completion_tokens"}, 1, kTokensMax, &chat.max_tokens);
  fields.boolean({"logprobs", "log-probabilities of the answer's tokens"}, &chat.logprobs);
  fields.integer({"top_logprobs", "with logprobs: and of so many most likely tokens"}, 0, kLogprobsMax,
                 &chat.top_logprobs);
  fields.value({"response_format", "what the answer's text is held to"}, format_schema(Shape::nested),
               [&](const Json& value, const std::string& path) {
                 return read_format(value, path, Shape::nested, &chat.format);
               });
  visit_tools(fields, Shape::nested, chat.tools);
  visit_choices(fields, chat.call);
  visit_stream(fields, chat.call);
  visit_temperature(fields, chat.sampling);
  visit_sampling(fields, chat.sampling);
  visit_own_sampling(fields, chat.sampling);
  visit_effort(fields, "reasoning_effort", chat.reasoning_effort);
  fields.value({"chat_template_kwargs", "further variables of the chat template"}, R"({"type":"object"})",
               keep_object(&chat.kwargs));
  fields.value({"documents", "for chat templates that read them"},
               R"({"type":"array","items":{"type":"object"}})",
               [&](const Json& value, const std::string& path) -> Problem {
                 if (Problem problem = want_array(value, path)) return problem;
                 for (std::size_t i = 0; i < value.size(); ++i) {
                   const std::string place = fmt::format("{}[{}]", path, i);
                   if (Problem problem = want_object(value[i], place)) return problem;
                 }
                 chat.documents = value;
                 return {};
               });
  visit_missing(fields);
  visit_chat_elsewhere(fields);
  visit_elsewhere(fields);
  visit_notes(fields);
}

Problem check(const ChatFields& chat) {
  if (chat.top_logprobs && !chat.logprobs.value_or(false))
    return invalid_value("top_logprobs", "'top_logprobs' needs 'logprobs': set it to true");
  const auto& [older, newer] = std::pair(chat.max_tokens, chat.max_completion_tokens);
  if (older && newer && *older != *newer)
    return invalid_value(
        "max_tokens",
        fmt::format("'max_tokens' is {} and 'max_completion_tokens' {}: give one", *older, *newer));
  return {};
}

}  // namespace

Problem read_chat(const Json& body, const ModelFacts& facts, Call* call) {
  ChatFields chat;
  if (Problem problem = read_fields(body, &chat)) return problem;
  if (Problem problem = finish_fields(chat.call, facts, call)) return problem;
  if (Problem problem = check(chat)) return problem;
  call->kind = Call::Kind::chat;
  call->logprobs = chat.logprobs.value_or(false);
  call->draws_seed = !chat.sampling.seed;
  TextRequest& request = call->prompts.emplace_back();
  apply(chat.sampling, facts.defaults, &request);
  request.max_tokens =
      static_cast<std::int32_t>(chat.max_completion_tokens.value_or(chat.max_tokens.value_or(0)));
  if (call->logprobs) request.logprobs = static_cast<std::int32_t>(chat.top_logprobs.value_or(0));
  request.format = chat.format.format;
  request.schema = std::move(chat.format.schema);
  Json conversation{{"messages", std::move(chat.messages)}};
  if (Problem problem = finish_tools(chat.tools, facts, call, &conversation)) return problem;
  if (chat.reasoning_effort) chat.kwargs["reasoning_effort"] = *chat.reasoning_effort;
  if (!chat.documents.is_null()) conversation["documents"] = std::move(chat.documents);
  if (!chat.kwargs.empty()) conversation["kwargs"] = std::move(chat.kwargs);
  request.conversation = json_text(conversation);
  return check_prompt_size(request, "messages", facts);
}

std::string chat_schema() { return schema_of<ChatFields>(); }

}  // namespace quire::server::api
