#include "cli/answer_report.h"

#include <fmt/format.h>

#include "cli/command.h"

namespace quire::cli {

double prefill_tokens_s(const TextOutput& end) {
  const int computed = end.prompt_tokens - end.cached_tokens;
  return end.first_token_s > 0 ? computed / end.first_token_s : 0.0;
}

double decode_tokens_s(const TextOutput& end) {
  const double seconds = end.finish_s - end.first_token_s;
  return end.completion_tokens > 1 && seconds > 0 ? (end.completion_tokens - 1) / seconds : 0.0;
}

std::string_view finish_reason(Finish finish) {
  return finish == Finish::failed ? "error" : to_string(finish);
}

nlohmann::ordered_json to_json(const AnswerReport& report, const EngineInfo& info) {
  nlohmann::ordered_json json;
  json["text"] = report.text;
  json["tokens"] = report.tokens;
  json["finish_reason"] = finish_reason(report.end.finish);
  if (report.end.finish == Finish::failed) json["error"] = report.end.error;
  json["prompt_tokens"] = report.end.prompt_tokens;
  json["completion_tokens"] = report.end.completion_tokens;
  json["cached_tokens"] = report.end.cached_tokens;
  json["cache_miss"] = report.end.cache_miss;
  json["ttft_s"] = report.end.first_token_s;
  json["load_s"] = info.load_s;
  json["prefill_tok_s"] = prefill_tokens_s(report.end);
  json["decode_tok_s"] = decode_tokens_s(report.end);
  json["page_size"] = info.page_size;
  nlohmann::ordered_json& backends = json["backends"] = nlohmann::ordered_json::object();
  for (const CallInfo& call : info.calls) backends[call.call] = call.backend;
  json["peak_rss_bytes"] = peak_rss_bytes();
  return json;
}

std::string figures(const TextOutput& end, const EngineInfo& info) {
  std::string calls;
  for (const CallInfo& call : info.calls)
    calls += fmt::format("{}{}={}", calls.empty() ? "" : " ", call.call, call.backend);
  return fmt::format(
      "[{} | page {} | prompt {} tokens, {:.1f} tok/s | answer {} tokens, {:.1f} tok/s | loaded in {:.2f} s "
      "| "
      "peak memory {:.0f} MB]",
      calls, info.page_size, end.prompt_tokens, prefill_tokens_s(end), end.completion_tokens,
      decode_tokens_s(end), info.load_s, static_cast<double>(peak_rss_bytes()) / 1e6);
}

}  // namespace quire::cli
