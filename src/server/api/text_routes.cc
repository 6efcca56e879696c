#include "server/api/text_routes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "server/api/call_fields.h"
#include "server/api/fields.h"
#include "server/api/limits.h"
#include "server/api/messages.h"
#include "server/loop/client_words.h"

namespace quire::server::api {
namespace {

struct TokenizeFields {
  CallFields call;
  std::optional<std::string> prompt;
  std::optional<bool> add_special_tokens, add_generation_prompt;
  Json messages;
};

struct DetokenizeFields {
  CallFields call;
  std::vector<std::int32_t> tokens;
  std::optional<bool> skip_special_tokens;
};

void visit(Fields& fields, TokenizeFields& tokenize) {
  visit_model(fields, tokenize.call);
  fields.text({"prompt", "the text"}, kTextBytesMax, &tokenize.prompt);
  fields.boolean({"add_special_tokens", "the tokenizer's own (BOS) before the text; absent: true"},
                 &tokenize.add_special_tokens);
  fields.value({"messages", "instead of prompt: a conversation, through the chat template"},
               messages_schema(), [&](const Json& value, const std::string& path) {
                 return read_messages(value, path, &tokenize.messages);
               });
  fields.boolean({"add_generation_prompt", "with messages: the opening of the answer; absent: true"},
                 &tokenize.add_generation_prompt);
}

Problem read_tokens(const Json& value, const std::string& path, std::vector<std::int32_t>* tokens) {
  if (Problem problem = want_array(value, path, "an array of token ids")) return problem;
  return read_token_ids(value, path, tokens);
}

void visit(Fields& fields, DetokenizeFields& detokenize) {
  static const std::string tokens_schema =
      with_limits(R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":@TokenIdMax}})");
  visit_model(fields, detokenize.call);
  fields.value({"tokens", "token ids", true}, tokens_schema.c_str(),
               [&](const Json& value, const std::string& path) {
                 return read_tokens(value, path, &detokenize.tokens);
               });
  fields.boolean({"skip_special_tokens", "leave out control tokens; absent: false"},
                 &detokenize.skip_special_tokens);
}

Problem read_tokenize(const std::string& body, const ModelFacts& facts, TextRequest* request) {
  Json object;
  if (Problem problem = parse_body(body, &object)) return problem;
  TokenizeFields tokenize;
  if (Problem problem = read_fields(object, &tokenize)) return problem;
  if (Problem problem = check_model(tokenize.call, facts)) return problem;
  if (tokenize.prompt.has_value() == !tokenize.messages.is_null())
    return invalid_value("prompt", "give one of 'prompt' and 'messages'");
  if (tokenize.prompt) {
    request->text = *tokenize.prompt;
    request->add_special_tokens = tokenize.add_special_tokens.value_or(true);
    return check_prompt_size(*request, "prompt", facts);
  }
  Json conversation{{"messages", std::move(tokenize.messages)}};
  conversation["add_generation_prompt"] = tokenize.add_generation_prompt.value_or(true);
  request->conversation = json_text(conversation);
  return check_prompt_size(*request, "messages", facts);
}

Problem read_detokenize(const std::string& body, const ModelFacts& facts, DetokenizeFields* detokenize) {
  Json object;
  if (Problem problem = parse_body(body, &object)) return problem;
  if (Problem problem = read_fields(object, detokenize)) return problem;
  return check_model(detokenize->call, facts);
}

Result<std::vector<std::int32_t>> tokens_of(const Session& session, const TextRequest& request) {
  if (request.conversation.empty()) return session.tokenize(request.text, request.add_special_tokens);
  Result<TextRequest> prepared = session.prepare(request);
  if (!prepared.ok()) return prepared.error();
  return std::move(prepared->ids);
}

HttpAnswer bad_text(const Error& error) {
  return error_answer(ApiError{400, client_words(error.message), "", "invalid_value", 0.0});
}

void tokenize(EngineLoop& loop, const ModelFacts& facts, const HttpRequest& http,
              const std::shared_ptr<Responder>& responder) {
  TextRequest request;
  if (Problem problem = read_tokenize(http.body, facts, &request))
    return responder->send(error_answer(*problem));
  const std::size_t bytes = prompt_bytes(request);
  loop.beside(bytes, [request = std::move(request), facts, responder](const Session& session) {
    Result<std::vector<std::int32_t>> tokens = tokens_of(session, request);
    if (!tokens.ok()) return responder->send(bad_text(tokens.error()));
    const Json out{{"count", tokens->size()}, {"max_model_len", facts.max_context}, {"tokens", *tokens}};
    responder->send({.body = json_text(out)});
  });
}

void detokenize(EngineLoop& loop, const ModelFacts& facts, const HttpRequest& http,
                const std::shared_ptr<Responder>& responder) {
  DetokenizeFields fields;
  if (Problem problem = read_detokenize(http.body, facts, &fields))
    return responder->send(error_answer(*problem));
  const std::size_t bytes = fields.tokens.size() * sizeof(std::int32_t);
  loop.beside(bytes, [fields = std::move(fields), responder](const Session& session) {
    const Result<std::string> text =
        session.detokenize(fields.tokens, fields.skip_special_tokens.value_or(false));
    if (!text.ok()) return responder->send(bad_text(text.error()));
    responder->send({.body = json_text(Json{{"prompt", *text}})});
  });
}

}  // namespace

void add_text_routes(Router& router, EngineLoop& loop, const ModelFacts& facts) {
  router.add("POST", "/tokenize", RouteAccess::keyed,
             [&loop, facts](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
               tokenize(loop, facts, request, responder);
             });
  router.add("POST", "/detokenize", RouteAccess::keyed,
             [&loop, facts](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
               detokenize(loop, facts, request, responder);
             });
}

std::string tokenize_schema() { return schema_of<TokenizeFields>(); }
std::string detokenize_schema() { return schema_of<DetokenizeFields>(); }

}  // namespace quire::server::api
