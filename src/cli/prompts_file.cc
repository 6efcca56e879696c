#include "cli/prompts_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/nearest.h"
#include "base/result.h"
#include "base/text.h"
#include "base/token_id.h"
#include "cli/settings.h"

namespace quire::cli {

namespace {

using PlainJson = nlohmann::json;

constexpr std::size_t kLineBytesMax = 64u << 20;
constexpr int kDepthMax = 32;
constexpr double kLongestWait = 1e6;  // seconds

constexpr std::array<std::string_view, 21> kKeys = {
    "prompt", "ids",        "messages",           "max_tokens",        "temperature",      "top_p",
    "top_k",  "min_p",      "repetition_penalty", "frequency_penalty", "presence_penalty", "seed",
    "stop",   "ignore_eos", "logit_bias",         "sequence_index",    "arrival_s",        "priority",
    "n",      "deadline_s", "cache_salt"};

Result<PlainJson> parse_line(const std::string& line) {
  if (line.size() > kLineBytesMax)
    return bad_input(fmt::format("{} bytes are over the limit of {}", line.size(), kLineBytesMax));
  int deepest = 0;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string twice;
  const auto look = [&](int depth, PlainJson::parse_event_t event, PlainJson& value) {
    deepest = std::max(deepest, depth);
    if (event == PlainJson::parse_event_t::object_start) keys.emplace_back();
    if (event == PlainJson::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == PlainJson::parse_event_t::key && !keys.empty()) {
      auto key = value.get<std::string>();
      if (!keys.back().insert(key).second && twice.empty()) twice = std::move(key);
    }
    return depth <= kDepthMax;
  };
  PlainJson json = PlainJson::parse(line, look, /*allow_exceptions=*/false);
  if (deepest > kDepthMax) return bad_input(fmt::format("nested deeper than {}", kDepthMax));
  if (json.is_discarded()) return bad_input("not JSON");
  if (!json.is_object()) return bad_input("not a JSON object");
  if (!twice.empty()) return bad_input(fmt::format("\"{}\" is there twice: leave out one", twice));
  return json;
}

template <class Number>
Status read_number(const PlainJson& json, const char* key, double low, double high, Number* target) {
  if (!json.contains(key)) return {};
  if (!json[key].is_number()) return bad_input(fmt::format("\"{}\" is not a number", key));
  const double value = json[key].get<double>();
  if (!(value >= low && value <= high))
    return bad_input(fmt::format("\"{}\" {} is outside {}..{}", key, value, low, high));
  if (!can_keep<Number>(value)) return bad_input(fmt::format("\"{}\" {}: {}", key, value, kTooSmall));
  *target = static_cast<Number>(value);
  return {};
}

template <class Integer>
Status read_integer(const PlainJson& json, const char* key, std::int64_t low, std::int64_t high,
                    Integer* target) {
  if (!json.contains(key)) return {};
  const bool whole = json[key].is_number_integer() &&
                     (!json[key].is_number_unsigned() || json[key].get<std::uint64_t>() <= INT64_MAX);
  if (!whole) return bad_input(fmt::format("\"{}\" is not a whole number", key));
  const std::int64_t value = json[key].get<std::int64_t>();
  if (value < low || value > high)
    return bad_input(fmt::format("\"{}\" {} is outside {}..{}", key, value, low, high));
  *target = static_cast<Integer>(value);
  return {};
}

Status read_prompt(const PlainJson& json, bool chat, TextRequest* request) {
  const int sources = static_cast<int>(json.contains("prompt")) + static_cast<int>(json.contains("ids")) +
                      static_cast<int>(json.contains("messages"));
  if (sources != 1) return bad_input("give exactly one of \"prompt\", \"ids\" and \"messages\"");
  if (json.contains("prompt")) {
    if (!json["prompt"].is_string()) return bad_input("\"prompt\" is not a string");
    request->text = json["prompt"].get<std::string>();
    if (chat) request->messages = {Message{"user", request->text}};
    return {};
  }
  if (json.contains("ids")) {
    if (chat) return bad_input("--chat needs text: give \"prompt\" or \"messages\" instead of \"ids\"");
    if (!json["ids"].is_array()) return bad_input("\"ids\" is not an array");
    for (const PlainJson& id : json["ids"]) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > INT32_MAX) {
        return bad_input("\"ids\" holds something that is not a token id");
      }
      request->ids.push_back(id.get<std::int32_t>());
    }
    return request->ids.empty() ? Status(bad_input("\"ids\" is empty")) : Status();
  }
  if (!json["messages"].is_array() || json["messages"].empty())
    return bad_input("\"messages\" is not an array of messages");
  for (const PlainJson& message : json["messages"]) {
    const bool fine = message.is_object() && message.contains("role") && message["role"].is_string() &&
                      message.contains("content") && message["content"].is_string();
    if (!fine) return bad_input("a message needs a \"role\" and a \"content\", both strings");
    request->messages.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
  }
  return {};
}

Status read_stop(const PlainJson& json, TextRequest* request) {
  if (!json.contains("stop")) return {};
  const PlainJson list = json["stop"].is_string() ? PlainJson::array({json["stop"]}) : json["stop"];
  if (!list.is_array()) return bad_input("\"stop\" is not a string or an array of strings");
  request->stop.clear();
  for (const PlainJson& stop : list) {
    if (!stop.is_string()) return bad_input("\"stop\" holds something that is not a string");
    request->stop.push_back(stop.get<std::string>());
  }
  return {};
}

Status read_logit_bias(const PlainJson& json, TextRequest* request) {
  if (!json.contains("logit_bias")) return {};
  if (!json["logit_bias"].is_object())
    return bad_input("\"logit_bias\" is not an object of token ids and numbers");
  request->sampling.logit_bias.clear();
  for (const auto& [key, value] : json["logit_bias"].items()) {
    const std::optional<std::int32_t> id = parse_token_id(key);
    const bool fine =
        id && value.is_number() && std::isfinite(value.get<float>()) && can_keep<float>(value.get<double>());
    if (!fine) return bad_input(fmt::format("\"logit_bias\": '{}' is not a token id with a number", key));
    request->sampling.logit_bias.emplace_back(*id, value.get<float>());
  }
  return {};
}

// How a request is served, rather than what it asks.
Status read_service(const PlainJson& json, TextRequest* request) {
  QUIRE_TRY_STATUS(read_integer(json, "priority", 0, 63, &request->priority));
  QUIRE_TRY_STATUS(read_number(json, "deadline_s", 0, kLongestWait, &request->deadline_s));
  if (!json.contains("cache_salt")) return {};
  if (!json["cache_salt"].is_string()) return bad_input("\"cache_salt\" is not a string");
  request->cache_salt = json["cache_salt"].get<std::string>();
  return {};
}

Status parse_request(const std::string& line, bool chat, NumberedRequest* target) {
  QUIRE_TRY(json, parse_line(line));
  for (const auto& item : json.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), item.key()) == kKeys.end()) {
      return bad_input(fmt::format("unknown key \"{}\"{}", item.key(), did_you_mean(item.key(), kKeys)));
    }
  }
  for (auto item = json.begin(); item != json.end();)
    item = item->is_null() ? json.erase(item) : std::next(item);
  TextRequest& request = target->request;
  Sampling& sampling = request.sampling;
  QUIRE_TRY_STATUS(read_prompt(json, chat, &request));
  QUIRE_TRY_STATUS(read_stop(json, &request));
  QUIRE_TRY_STATUS(read_logit_bias(json, &request));
  QUIRE_TRY_STATUS(read_integer(json, "max_tokens", 1, 1 << 30, &request.max_tokens));
  QUIRE_TRY_STATUS(read_integer(json, "top_k", 0, 1 << 30, &sampling.top_k));
  QUIRE_TRY_STATUS(read_integer(json, "seed", 0, INT64_MAX, &sampling.seed));
  QUIRE_TRY_STATUS(read_integer(json, "sequence_index", 0, INT64_MAX, &request.sequence_index));
  QUIRE_TRY_STATUS(read_integer(json, "n", 1, kMostSamples, &target->n));
  QUIRE_TRY_STATUS(read_service(json, &request));
  QUIRE_TRY_STATUS(read_number(json, "arrival_s", 0, kLongestWait, &target->arrival_s));
  QUIRE_TRY_STATUS(read_number(json, "temperature", 0, 1000, &sampling.temperature));
  QUIRE_TRY_STATUS(read_number(json, "top_p", 1e-9, 1, &sampling.top_p));
  QUIRE_TRY_STATUS(read_number(json, "min_p", 0, 1, &sampling.min_p));
  QUIRE_TRY_STATUS(read_number(json, "repetition_penalty", 1e-3, 1e3, &sampling.repetition_penalty));
  QUIRE_TRY_STATUS(read_number(json, "frequency_penalty", -1e3, 1e3, &sampling.frequency_penalty));
  QUIRE_TRY_STATUS(read_number(json, "presence_penalty", -1e3, 1e3, &sampling.presence_penalty));
  if (json.contains("ignore_eos")) {
    if (!json["ignore_eos"].is_boolean()) return bad_input("\"ignore_eos\" is not true or false");
    request.ignore_eos = json["ignore_eos"].get<bool>();
  }
  return {};
}

}  // namespace

Result<std::vector<NumberedRequest>> parse_prompts(const std::string& text, const TextRequest& base,
                                                   bool chat, std::int32_t n) {
  std::vector<NumberedRequest> requests;
  std::uint64_t samples = 0;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    NumberedRequest request{.line = number, .n = n, .request = base};
    request.request.sequence_index = samples;
    const Status parsed = parse_request(line, chat, &request);
    if (!parsed.ok()) return bad_input(fmt::format("prompts, line {}: {}", number, parsed.error().message));
    samples += static_cast<std::uint64_t>(request.n);
    requests.push_back(std::move(request));
  }
  if (requests.empty()) return bad_input("prompts: the file holds no request; give one JSON object a line");
  return requests;
}

}  // namespace quire::cli
