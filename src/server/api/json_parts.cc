#include "server/api/json_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "tokenizer/unicode.h"

namespace quire::server::api {
namespace {

Json bytes_json(std::string_view bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return list;
}

Json likely_json(float logprob, const std::string& bytes) {
  return Json{{"token", bytes}, {"logprob", finite(logprob)}, {"bytes", bytes_json(bytes)}};
}

}  // namespace

std::string sse(const Json& data) { return "data: " + json_text(data) + "\n\n"; }

std::string sse(std::string_view event, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", event, json_text(data));
}

double finite(float logprob) {
  constexpr double kLeast = -9999.0;  // also for NaN, which compares with nothing
  return logprob > kLeast ? static_cast<double>(logprob) : kLeast;
}

Json token_json(const TextLogprob& token) {
  Json entry = likely_json(token.logprob, token.bytes);
  Json& top = entry["top_logprobs"] = Json::array();
  for (const TextLogprob::Likely& likely : token.top)
    top.push_back(likely_json(likely.logprob, likely.bytes));
  return entry;
}

bool is_utf8(std::string_view bytes) { return tokenizer::lossy_utf8(bytes) == bytes; }

std::string token_text(std::string_view bytes) {
  if (is_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

Json usage_json(const Totals& totals) {
  return Json{{"prompt_tokens", totals.prompt_tokens},
              {"completion_tokens", totals.completion_tokens},
              {"total_tokens", totals.prompt_tokens + totals.completion_tokens},
              {"prompt_tokens_details", {{"cached_tokens", totals.cached_tokens}}},
              {"completion_tokens_details", {{"reasoning_tokens", 0}}}};
}

Json own_json(const Totals& totals) {
  Json list = Json::array();
  for (std::size_t i = 0; i < totals.choices.size(); ++i) {
    const ChoiceEnd& end = totals.choices[i];
    list.push_back({{"index", i},
                    {"finish", to_string(end.finish)},
                    {"prompt_tokens", end.prompt_tokens},
                    {"completion_tokens", end.completion_tokens},
                    {"cached_tokens", end.cached_tokens},
                    {"cache_miss", end.cache_miss},
                    {"queued_s", end.queued_s},
                    {"first_token_s", end.first_token_s},
                    {"finish_s", end.finish_s}});
  }
  return list;
}

Json with_totals(Json object, Json choices, const Totals& totals) {
  object["choices"] = std::move(choices);
  object["usage"] = usage_json(totals);
  object["quire"] = own_json(totals);
  return object;
}

}  // namespace quire::server::api
