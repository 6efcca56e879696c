#include "server/api/call.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api/limits.h"
#include "server/loop/loop.h"

namespace quire::server::api {
namespace {

// All but the prompt and what is prepared with it, without ever copying those.
TextRequest without_prompt(TextRequest& request) {
  std::string text = std::move(request.text);
  std::string conversation = std::move(request.conversation);
  std::string schema = std::move(request.schema);
  std::vector<std::int32_t> ids = std::move(request.ids);
  request.text = request.conversation = request.schema = {};
  request.ids = {};
  TextRequest rest = request;
  request.text = std::move(text);
  request.conversation = std::move(conversation);
  request.schema = std::move(schema);
  request.ids = std::move(ids);
  return rest;
}

ApiError too_long(std::string_view path, std::string message) {
  return {400, std::move(message), std::string(path), "context_length_exceeded", 0.0};
}

}  // namespace

Problem check_prompt_size(const TextRequest& request, std::string_view path, const ModelFacts& facts) {
  const auto context = static_cast<std::size_t>(facts.max_context);
  if (request.ids.size() > context && context > 0)
    return too_long(path, fmt::format("'{}' has {} token ids and the context {} tokens: shorten it by {}",
                                      path, request.ids.size(), context, request.ids.size() - context));
  const std::size_t bytes = prompt_bytes(request);
  const std::size_t most = std::max(kPromptBytesMin, context * kPromptBytesPerToken);
  if (bytes <= most) return {};
  const std::string what =
      request.conversation.empty()
          ? fmt::format("'{}' has", path)
          : fmt::format(
                "'{}' and what else the chat template is given (tools, documents, reasoning, "
                "arguments) have",
                path);
  return too_long(path, fmt::format("{} {} bytes: at most {} are read for a context of {} tokens", what,
                                    bytes, most, context));
}

std::vector<TextRequest> requests_of(Call& call, std::uint64_t fresh_seed) {
  std::vector<TextRequest> requests;
  requests.reserve(call.size());
  for (TextRequest& prompt : call.prompts) {
    if (call.draws_seed) prompt.sampling.seed = fresh_seed;
    prompt.sequence_index = 0;
    TextRequest further = call.choices > 1 ? without_prompt(prompt) : TextRequest();
    requests.push_back(std::move(prompt));
    for (std::int32_t choice = 1; choice < call.choices; ++choice) {
      further.sequence_index = static_cast<std::uint64_t>(choice);
      requests.push_back(further);
    }
  }
  return requests;
}

}  // namespace quire::server::api
