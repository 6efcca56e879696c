#include "server/api/sampling.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/token_id.h"
#include "server/api/limits.h"

namespace quire::server::api {
namespace {

// A string or an array of strings.
Problem read_stop(const Json& value, const std::string& path, std::vector<std::string>* target) {
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array())
    return invalid_type(
        path, fmt::format("'{}' is {}: give a string or an array of strings", path, type_name(value)));
  if (list.size() > kStopsMax)
    return invalid_value(path,
                         fmt::format("'{}' has {} strings: give at most {}", path, list.size(), kStopsMax));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = value.is_string() ? path : fmt::format("{}[{}]", path, i);
    if (!list[i].is_string())
      return invalid_type(place, fmt::format("'{}' is {}: give a string", place, type_name(list[i])));
    const auto& text = list[i].get_ref<const std::string&>();
    if (text.empty() || text.size() > kStopBytesMax)
      return invalid_value(place,
                           fmt::format("'{}' has {} bytes: give 1 to {}", place, text.size(), kStopBytesMax));
    target->push_back(text);
  }
  return {};
}

Problem read_bias(const Json& value, const std::string& path,
                  std::vector<std::pair<std::int32_t, float>>* target) {
  if (Problem problem = want_object(value, path, "an object of token ids and numbers")) return problem;
  if (value.size() > kBiasesMax)
    return invalid_value(path,
                         fmt::format("'{}' has {} entries: give at most {}", path, value.size(), kBiasesMax));
  for (const auto& [key, bias] : value.items()) {
    const std::string place = fmt::format("{}.{}", path, key.substr(0, 40));
    const std::optional<std::int32_t> id = parse_token_id(key);
    if (!id) return invalid_value(place, fmt::format("'{}': {} is not a token id", place, shown(Json(key))));
    if (!bias.is_number())
      return invalid_type(place, fmt::format("'{}' is {}: give a number", place, type_name(bias)));
    const double number = bias.get<double>();
    if (!(number >= -kBiasMost && number <= kBiasMost))
      return invalid_value(
          place, fmt::format("'{}' is {}: give {} to {}", place, shown(bias), -kBiasMost, kBiasMost));
    target->emplace_back(*id, static_cast<float>(number));
  }
  return {};
}

const char* stop_schema() {
  static const std::string text = with_limits(R"({"anyOf":[
  {"type":"string","minLength":1,"maxLength":@StopBytesMax},
  {"type":"array","maxItems":@StopsMax,"items":{"type":"string","minLength":1,"maxLength":@StopBytesMax}}]})");
  return text.c_str();
}

const char* bias_schema() {
  static const std::string text = with_limits(R"({"type":"object","maxProperties":@BiasesMax,
  "propertyNames":{"pattern":"^(0|[1-9][0-9]{0,9})$"},
  "additionalProperties":{"type":"number","minimum":-@BiasMost,"maximum":@BiasMost}})");
  return text.c_str();
}

}  // namespace

void visit_temperature(Fields& fields, SamplingFields& sampling) {
  fields.number({"temperature", "0 takes the most likely token each time"}, 0.0, 2.0, &sampling.temperature);
  fields.number({"top_p", "draw from the most likely tokens of this total probability"}, 0.0, 1.0,
                &sampling.top_p);
}

void visit_sampling(Fields& fields, SamplingFields& sampling) {
  fields.value(
      {"stop", "texts that end the answer and are not part of it"}, stop_schema(),
      [&](const Json& value, const std::string& path) { return read_stop(value, path, &sampling.stop); });
  fields.integer({"seed", "the same request with the same seed gives the same answer"},
                 std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                 &sampling.seed);
  fields.value({"logit_bias", "token id (at most 2147483647) to what is added to its logit"}, bias_schema(),
               [&](const Json& value, const std::string& path) {
                 return read_bias(value, path, &sampling.logit_bias);
               });
  fields.number({"frequency_penalty", "subtracted from a token's logit for each time it is in the answer"},
                -2.0, 2.0, &sampling.frequency_penalty);
  fields.number({"presence_penalty", "subtracted from the logit of a token that is in the answer"}, -2.0, 2.0,
                &sampling.presence_penalty);
}

void visit_own_sampling(Fields& fields, SamplingFields& sampling) {
  fields.integer({"top_k", "draw from so many most likely tokens; 0 or -1: off"}, -1, 1 << 30,
                 &sampling.top_k);
  fields.number({"min_p", "leave out tokens less likely than this share of the most likely one"}, 0.0, 1.0,
                &sampling.min_p);
  fields.number({"repetition_penalty", "divides the logits of tokens in prompt and answer; 1: off"}, 0.01,
                100.0, &sampling.repetition_penalty);
  fields.boolean({"ignore_eos", "go on after the model's end token"}, &sampling.ignore_eos);
  fields.integer({"priority", "higher first, where the server schedules by priority"}, 0, 63,
                 &sampling.priority);
  fields.number({"deadline_s", "an answer not complete after so many seconds ends; 0: none"}, 0.0, 1e6,
                &sampling.deadline_s);
  fields.text({"cache_salt", "prefixes are shared only between requests with the same one"}, 256,
              &sampling.cache_salt);
}

void apply(const SamplingFields& fields, const GenerationDefaults& defaults, TextRequest* request) {
  Sampling& sampling = request->sampling;
  const bool model_says = defaults.do_sample;
  const auto pick = [&](const std::optional<double>& given, const std::optional<float>& said, float other) {
    return given ? static_cast<float>(*given) : model_says ? said.value_or(other) : other;
  };
  sampling.temperature = pick(fields.temperature, defaults.temperature, 1.0f);
  sampling.top_p = pick(fields.top_p, defaults.top_p, 1.0f);
  sampling.min_p = pick(fields.min_p, defaults.min_p, 0.0f);
  sampling.repetition_penalty = pick(fields.repetition_penalty, defaults.repetition_penalty, 1.0f);
  const std::int32_t top_k = model_says ? defaults.top_k.value_or(0) : 0;
  sampling.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(0, fields.top_k.value_or(top_k)));
  sampling.frequency_penalty = static_cast<float>(fields.frequency_penalty.value_or(0.0));
  sampling.presence_penalty = static_cast<float>(fields.presence_penalty.value_or(0.0));
  sampling.logit_bias = fields.logit_bias;
  sampling.seed = static_cast<std::uint64_t>(fields.seed.value_or(0));
  request->stop = fields.stop;
  request->ignore_eos = fields.ignore_eos.value_or(false);
  request->priority = static_cast<std::int32_t>(fields.priority.value_or(0));
  constexpr double kLeastDeadline = 1e-6;
  const double deadline = fields.deadline_s.value_or(0.0);
  request->deadline_s = deadline > 0.0 ? std::max(deadline, kLeastDeadline) : 0.0;
  request->cache_salt = fields.cache_salt.value_or("");
}

}  // namespace quire::server::api
