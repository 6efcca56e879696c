#include "server/api/call_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "server/api/limits.h"

namespace quire::server::api {
namespace {

void visit_stream_options(Fields& fields, CallFields& call) {
  call.has_stream_options = true;
  fields.boolean({"include_usage", "a last chunk with the usage"}, &call.include_usage);
  std::optional<bool> ignored;
  fields.boolean({"include_obfuscation", "no effect: events are not padded"}, &ignored);
}

Problem read_metadata(const Json& value, const std::string& path) {
  if (Problem problem = want_object(value, path, "an object of strings")) return problem;
  for (const auto& [key, entry] : value.items()) {
    const std::string place = fmt::format("{}.{}", path, key.substr(0, 64));
    if (!entry.is_string())
      return invalid_type(place, fmt::format("'{}' is {}: give a string", place, type_name(entry)));
  }
  return {};
}

}  // namespace

void visit_model(Fields& fields, CallFields& call) {
  fields.text({"model", "the name that /v1/models gives; absent: that one"}, kModelBytesMax, &call.model);
}

void visit_choices(Fields& fields, CallFields& call) {
  fields.integer({"n", "answers to each prompt"}, 1, kChoicesMax, &call.n);
}

void visit_stream(Fields& fields, CallFields& call) {
  fields.boolean({"stream", "send the answer as server-sent events while it is made"}, &call.stream);
  fields.object({"stream_options", "only with stream"},
                [&](Fields& inner) { visit_stream_options(inner, call); });
}

void visit_effort(Fields& fields, const char* name, std::optional<std::string>& effort) {
  fields.choice({name, "for chat templates that read reasoning_effort"},
                {"none", "minimal", "low", "medium", "high", "xhigh"}, &effort);
}

void visit_no_reasoning(Fields& fields, const char* instead) {
  fields.missing({"reasoning", "another route's; one that says nothing is taken"},
                 {"{}", R"({"effort":null})", R"({"summary":null})", R"({"effort":null,"summary":null})"},
                 instead);
}

void visit_notes(Fields& fields) {
  fields.noted({"user", "for the caller's own books: no effect here"});
  fields.noted({"safety_identifier", "for the caller's own books: no effect here"});
  fields.noted({"prompt_cache_key", "no effect: every prefix is looked up"});
  std::optional<std::string> ignored;
  fields.choice({"service_tier", "no effect: there is one tier"},
                {"auto", "default", "flex", "scale", "priority"}, &ignored);
  fields.value({"metadata", "for the caller's own books: no effect here"},
               R"({"type":"object","additionalProperties":{"type":"string"}})", read_metadata);
}

void visit_missing(Fields& fields) {
  constexpr const char* kOut = "leave it out";
  fields.missing({"modalities", "text only"}, {R"(["text"])"}, "use [\"text\"] or leave it out");
  for (const char* name : {"audio", "prediction", "web_search_options"})
    fields.missing({name, "not here"}, {}, kOut);
  fields.missing({"functions", "not here; none are taken"}, {"[]"},
                 "use 'tools' of /v1/chat/completions or /v1/responses");
  fields.missing({"function_call", "not here; none and auto are taken"}, {R"("none")", R"("auto")"},
                 "use 'tool_choice' of /v1/chat/completions or /v1/responses");
  fields.missing({"max_tool_calls", "tools run at the client"}, {}, kOut);
  fields.missing({"verbosity", "not here; medium is taken"}, {R"("medium")"},
                 "say in the prompt how long the answer is to be");
  fields.missing({"store", "nothing is stored; false is taken"}, {"false"}, "use false or leave it out");
  for (const char* name : {"previous_response_id", "conversation"})
    fields.missing({name, "nothing is stored"}, {}, "send the whole conversation");
  fields.missing({"background", "not here; false is taken"}, {"false"}, "use 'stream'");
  fields.missing({"truncation", "not here; disabled is taken"}, {R"("disabled")"}, "shorten the prompt");
  fields.missing({"best_of", "not here; 1 is taken"}, {"1"},
                 "ask /v1/completions for all with 'n' and choose by their logprobs");
  fields.missing({"suffix", "not here; an empty one is taken"}, {R"("")"},
                 "write the model's own fill-in-the-middle tokens into the prompt of /v1/completions");
}

void visit_elsewhere(Fields& fields) {
  constexpr const char* kForm =
      "hold answers to a form with 'response_format' in /v1/chat/completions or 'text' in /v1/responses";
  constexpr const char* kBias = "leave it out, or use 'logit_bias'";
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
                           "structured_outputs", "json_schema"})
    fields.missing({name, "another server's"}, {}, kForm);
  fields.missing({"grammar", "another server's; an empty one is taken"}, {R"("")"}, kForm);
  fields.missing({"stop_token_ids", "another server's; none are taken"}, {"[]"}, "give texts as 'stop'");
  fields.missing({"min_tokens", "another server's; 0 is taken"}, {"0"}, kBias);
  fields.missing({"bad_words", "another server's; none are taken"}, {"[]"}, kBias);
  fields.missing({"allowed_token_ids", "another server's"}, {}, kBias);
  fields.missing({"n_predict", "another server's"}, {}, "give the most tokens as 'max_tokens'");
  fields.missing({"prompt_logprobs", "another server's"}, {}, "use 'echo' and 'logprobs' of /v1/completions");
}

Problem check_model(const CallFields& fields, const ModelFacts& facts) {
  if (!fields.model || *fields.model == facts.name) return {};
  return no_such_model(*fields.model, fmt::format("use \"{}\" or leave 'model' out", facts.name));
}

Problem finish_fields(const CallFields& fields, const ModelFacts& facts, Call* call) {
  if (Problem problem = check_model(fields, facts)) return problem;
  call->stream = fields.stream.value_or(false);
  call->include_usage = fields.include_usage.value_or(false);
  if (fields.has_stream_options && !call->stream)
    return invalid_value("stream_options", "'stream_options' is for streams: set 'stream' or leave it out");
  call->choices = static_cast<std::int32_t>(fields.n.value_or(1));
  return {};
}

}  // namespace quire::server::api
