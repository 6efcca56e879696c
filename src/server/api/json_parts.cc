#include "server/api/json_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

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

// The bytes of the character that begins with `lead`; 0: none does.
std::size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

}  // namespace

std::string sse(const Json& data) { return "data: " + dumped(data) + "\n\n"; }

std::string sse(std::string_view event, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", event, dumped(data));
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

bool is_utf8(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const std::size_t length = sequence_length(byte(at));
    if (length == 0 || at + length > bytes.size()) return false;
    for (std::size_t i = at + 1; i < at + length; ++i)
      if ((byte(i) & 0xc0) != 0x80) return false;
    const bool overlong =
        (byte(at) == 0xe0 && byte(at + 1) < 0xa0) || (byte(at) == 0xf0 && byte(at + 1) < 0x90);
    const bool beyond =
        (byte(at) == 0xed && byte(at + 1) > 0x9f) || (byte(at) == 0xf4 && byte(at + 1) > 0x8f);
    if (overlong || beyond) return false;
    at += length;
  }
  return true;
}

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

}  // namespace quire::server::api
