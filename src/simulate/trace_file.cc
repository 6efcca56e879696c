#include "simulate/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/nearest.h"
#include "scheduler/request.h"

namespace quire::simulate {
namespace {

using PlainJson = nlohmann::json;

constexpr std::size_t kLineBytesMax = 64u << 20;
constexpr std::size_t kRequestsMax = 1u << 26;
constexpr std::int64_t kTokensMax = 1 << 26;  // of one request
constexpr int kDepthMax = 4;
constexpr std::uint64_t kContentMax = std::uint64_t{1} << 62;

constexpr std::array<std::string_view, 11> kOwnKeys = {
    "arrival_s", "prompt", "ids",         "max_tokens",   "output_tokens", "output",
    "priority",  "space",  "abort_after", "refuse_after", "read_tokens_s"};
constexpr std::array<std::string_view, 4> kMooncakeKeys = {"timestamp", "input_length", "output_length",
                                                           "hash_ids"};

Result<PlainJson> parse_line(std::string_view line) {
  if (line.size() > kLineBytesMax)
    return bad_input(fmt::format("{} bytes are over the limit of {}", line.size(), kLineBytesMax));
  int deepest = 0;
  PlainJson json = PlainJson::parse(
      line.begin(), line.end(),
      [&deepest](int depth, PlainJson::parse_event_t, PlainJson&) {
        deepest = std::max(deepest, depth);
        return depth <= kDepthMax;
      },
      /*allow_exceptions=*/false);
  if (deepest > kDepthMax) return bad_input(fmt::format("nested deeper than {}", kDepthMax));
  if (json.is_discarded()) return bad_input("not JSON");
  if (!json.is_object()) return bad_input("not a JSON object");
  return json;
}

Status check_keys(const PlainJson& json, std::span<const std::string_view> known) {
  for (const auto& item : json.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end())
      return bad_input(fmt::format("unknown key \"{}\"{}", item.key(), did_you_mean(item.key(), known)));
  }
  return {};
}

// A whole number in [low, high].
Result<std::int64_t> whole(const PlainJson& value, std::string_view what, std::int64_t low,
                           std::int64_t high) {
  const bool fine =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (!fine) return bad_input(fmt::format("{} is not a whole number", what));
  const std::int64_t number = value.get<std::int64_t>();
  if (number < low || number > high)
    return bad_input(fmt::format("{} {} is outside {} to {}", what, number, low, high));
  return number;
}

Result<std::int64_t> whole_or(const PlainJson& json, const char* key, std::int64_t standard, std::int64_t low,
                              std::int64_t high) {
  if (!json.contains(key)) return standard;
  return whole(json[key], fmt::format("\"{}\"", key), low, high);
}

Result<double> number_or(const PlainJson& json, const char* key, double standard) {
  if (!json.contains(key)) return standard;
  const bool fine =
      json[key].is_number() && json[key].get<double>() >= 0.0 && json[key].get<double>() <= 1e12;
  if (!fine) return bad_input(fmt::format("\"{}\" is not a number from 0 to 1e12", key));
  return json[key].get<double>();
}

Status read_mooncake(const PlainJson& json, Trace& trace) {
  QUIRE_TRY_STATUS(check_keys(json, kMooncakeKeys));
  for (const std::string_view key : kMooncakeKeys)
    if (!json.contains(key)) return bad_input(fmt::format("\"{}\" is missing", key));
  TraceRequest request;
  QUIRE_TRY(timestamp, number_or(json, "timestamp", 0.0));
  QUIRE_TRY(input, whole_or(json, "input_length", 0, 1, kTokensMax));
  QUIRE_TRY(output, whole_or(json, "output_length", 0, 1, kTokensMax));
  request.arrival_s = timestamp / 1e3;
  request.max_tokens = request.output_tokens = static_cast<std::int32_t>(output);
  request.output_content = mix(trace.requests.size(), 1) >> 2;
  if (!json["hash_ids"].is_array()) return bad_input("\"hash_ids\" is not an array");
  const std::int64_t blocks = (input + kMooncakeBlock - 1) / kMooncakeBlock;
  if (static_cast<std::int64_t>(json["hash_ids"].size()) != blocks)
    return bad_input(fmt::format("{} hash ids for {} tokens: blocks of {} make {}", json["hash_ids"].size(),
                                 input, kMooncakeBlock, blocks));
  std::vector<Segment> prompt;
  for (const PlainJson& id : json["hash_ids"]) {
    QUIRE_TRY(content, whole(id, "a hash id", 0, static_cast<std::int64_t>(kContentMax)));
    const std::int64_t left = input - std::ssize(prompt) * kMooncakeBlock;
    prompt.push_back({static_cast<std::uint64_t>(content),
                      static_cast<std::int32_t>(std::min<std::int64_t>(left, kMooncakeBlock))});
  }
  add_request(trace, request, prompt);
  return {};
}

Result<std::vector<Segment>> read_ids(const PlainJson& ids, Trace& trace) {
  if (!ids.is_array() || ids.empty()) return bad_input("\"ids\" is not an array of token ids");
  std::vector<std::int32_t> tokens;
  tokens.reserve(ids.size());
  for (const PlainJson& id : ids) {
    QUIRE_TRY(token, whole(id, "a token id", 0, INT32_MAX));
    tokens.push_back(static_cast<std::int32_t>(token));
  }
  return std::vector<Segment>{{add_literal(trace, tokens), static_cast<std::int32_t>(tokens.size())}};
}

Result<std::vector<Segment>> read_segments(const PlainJson& list) {
  if (!list.is_array()) return bad_input("\"prompt\" is not an array of [content, tokens]");
  std::vector<Segment> prompt;
  std::int64_t sum = 0;
  for (const PlainJson& pair : list) {
    if (!pair.is_array() || pair.size() != 2)
      return bad_input("\"prompt\" holds what is not [content, tokens]");
    QUIRE_TRY(content, whole(pair[0], "a content", 0, static_cast<std::int64_t>(kContentMax)));
    QUIRE_TRY(tokens, whole(pair[1], "a segment's tokens", 1, kTokensMax));
    sum += tokens;
    prompt.push_back({static_cast<std::uint64_t>(content), static_cast<std::int32_t>(tokens)});
  }
  if (sum < 1 || sum > kTokensMax)
    return bad_input(fmt::format("a prompt of {} tokens is outside 1 to {}", sum, kTokensMax));
  return prompt;
}

Status read_own(const PlainJson& json, Trace& trace) {
  QUIRE_TRY_STATUS(check_keys(json, kOwnKeys));
  if (json.contains("prompt") == json.contains("ids"))
    return bad_input("give \"prompt\" as [[content, tokens], ...] or \"ids\", one of the two");
  if (!json.contains("max_tokens")) return bad_input("\"max_tokens\" is missing");
  TraceRequest request;
  QUIRE_TRY(arrival, number_or(json, "arrival_s", 0.0));
  QUIRE_TRY(most, whole_or(json, "max_tokens", 0, 1, kTokensMax));
  QUIRE_TRY(output, whole_or(json, "output_tokens", most, 1, most));
  const auto own_content = static_cast<std::int64_t>(mix(trace.requests.size(), 1) >> 2);
  QUIRE_TRY(content, whole_or(json, "output", own_content, 0, static_cast<std::int64_t>(kContentMax)));
  QUIRE_TRY(priority, whole_or(json, "priority", 0, 0, scheduler::kMaxPriority));
  QUIRE_TRY(space, whole_or(json, "space", 0, 0, UINT32_MAX));
  QUIRE_TRY(abort_after, whole_or(json, "abort_after", kNever, 0, INT32_MAX));
  QUIRE_TRY(refuse_after, whole_or(json, "refuse_after", kNever, 0, INT32_MAX));
  QUIRE_TRY(read_tokens_s, number_or(json, "read_tokens_s", 0.0));
  request.arrival_s = arrival;
  request.max_tokens = static_cast<std::int32_t>(most);
  request.output_tokens = static_cast<std::int32_t>(output);
  request.output_content = static_cast<std::uint64_t>(content);
  request.priority = static_cast<std::int32_t>(priority);
  request.space = static_cast<std::uint32_t>(space);
  request.faults = {static_cast<std::int32_t>(abort_after), static_cast<std::int32_t>(refuse_after),
                    static_cast<float>(read_tokens_s)};
  QUIRE_TRY(prompt, json.contains("ids") ? read_ids(json["ids"], trace) : read_segments(json["prompt"]));
  add_request(trace, request, prompt);
  return {};
}

Status read_line(std::string_view line, Trace& trace) {
  QUIRE_TRY(json, parse_line(line));
  if (trace.requests.size() >= kRequestsMax)
    return bad_input(fmt::format("more than {} requests: split the trace", kRequestsMax));
  return json.contains("hash_ids") ? read_mooncake(json, trace) : read_own(json, trace);
}

void append_request(const Trace& trace, const TraceRequest& request, std::string& text) {
  text += fmt::format("{{\"arrival_s\":{}", request.arrival_s);
  const std::span<const Segment> prompt = trace.prompt(request);
  if (prompt.size() == 1 && prompt[0].content > kContentMax) {
    std::vector<std::int32_t> ids;
    append_prompt(trace, request, ids);
    text += ",\"ids\":[";
    for (std::size_t i = 0; i < ids.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(ids[i]);
    text += "]";
  } else {
    text += ",\"prompt\":[";
    for (std::size_t i = 0; i < prompt.size(); ++i)
      text += fmt::format("{}[{},{}]", i == 0 ? "" : ",", prompt[i].content, prompt[i].tokens);
    text += "]";
  }
  text += fmt::format(",\"max_tokens\":{},\"output_tokens\":{},\"output\":{}", request.max_tokens,
                      request.output_tokens, request.output_content);
  if (request.priority != 0) text += fmt::format(",\"priority\":{}", request.priority);
  if (request.space != 0) text += fmt::format(",\"space\":{}", request.space);
  const Faults& faults = request.faults;
  if (faults.abort_after != kNever) text += fmt::format(",\"abort_after\":{}", faults.abort_after);
  if (faults.refuse_after != kNever) text += fmt::format(",\"refuse_after\":{}", faults.refuse_after);
  if (faults.read_tokens_s > 0) text += fmt::format(",\"read_tokens_s\":{}", faults.read_tokens_s);
  text += "}\n";
}

}  // namespace

Result<Trace> parse_trace(const std::string& text, const std::string& name) {
  Trace trace;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Status status = read_line(line, trace);
    if (!status.ok()) return bad_input(fmt::format("{}, line {}: {}", name, number, status.error().message));
  }
  if (trace.requests.empty())
    return bad_input(fmt::format("{} holds no request; give one JSON object a line", name));
  sort_by_arrival(trace);
  return trace;
}

std::string to_text(const Trace& trace) {
  std::string text;
  for (const TraceRequest& request : trace.requests) append_request(trace, request, text);
  return text;
}

}  // namespace quire::simulate
