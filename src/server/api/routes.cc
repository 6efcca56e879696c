#include "server/api/routes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "server/api/chat_call.h"
#include "server/api/completion_call.h"
#include "server/api/json.h"
#include "server/api/openapi.h"
#include "server/api/response_call.h"
#include "server/api/run_call.h"
#include "server/api/text_routes.h"

namespace quire::server {
namespace {

using api::Json;
using ReadCall = api::Problem (*)(const Json& body, const api::ModelFacts& facts, api::Call* call);

std::uint64_t random_bits() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

void run(EngineLoop& loop, const api::ModelFacts& facts, ReadCall read, const HttpRequest& request,
         const std::shared_ptr<Responder>& responder) {
  Json body;
  api::Call call;
  api::Problem problem = api::parse_body(request.body, &body);
  if (!problem) problem = read(body, facts, &call);
  if (problem) return responder->send(api::error_answer(*problem));
  api::AnswerHead head{.id = fmt::format("{:016x}{:08x}", random_bits(), random_bits() >> 32),
                       .created = static_cast<std::int64_t>(unix_now()),
                       .model = facts.name};
  api::run_call(loop, call, std::move(head), random_bits(), responder);
}

Json model_json(const api::ModelFacts& facts) {
  return Json{{"id", facts.name},
              {"object", "model"},
              {"created", facts.created},
              {"owned_by", "quire"},
              {"max_model_len", facts.max_context}};
}

void add_models(Router& router, const api::ModelFacts& facts) {
  router.add("GET", "/v1/models", RouteAccess::keyed,
             [facts](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
               const Json list{{"object", "list"}, {"data", Json::array({model_json(facts)})}};
               responder->send({.body = json_text(list)});
             });
  // A name may be a path of several segments.
  router.add("GET", "/v1/models/{model*}", RouteAccess::keyed,
             [facts](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
               if (request.param("model") == facts.name)
                 return responder->send({.body = json_text(model_json(facts))});
               responder->send(api::error_answer(api::no_such_model(
                   request.param("model"), fmt::format("/v1/models lists \"{}\"", facts.name))));
             });
}

}  // namespace

void add_api_routes(Router& router, EngineLoop& loop, const ServeOptions& options) {
  const api::ModelFacts facts{.name = options.served_model_name,
                              .created = options.created,
                              .max_context = loop.info().max_context,
                              .defaults = loop.defaults(),
                              .tool_format = loop.tool_format()};
  for (const auto& [path, read] : {std::pair<const char*, ReadCall>{"/v1/completions", api::read_completion},
                                   {"/v1/chat/completions", api::read_chat},
                                   {"/v1/responses", api::read_response}}) {
    router.add(
        "POST", path, RouteAccess::keyed,
        [&loop, facts, read = read](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
          run(loop, facts, read, request, responder);
        });
  }
  add_models(router, facts);
  api::add_text_routes(router, loop, facts);
  router.add("GET", "/openapi.json", RouteAccess::keyed,
             [document = api::openapi_document(facts)](const HttpRequest&,
                                                       const std::shared_ptr<Responder>& responder) {
               responder->send({.body = document});
             });
}

}  // namespace quire::server
