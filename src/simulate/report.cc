#include "simulate/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace quire::simulate {
namespace {

using Json = nlohmann::ordered_json;

Json quantiles(const Quantiles& q) { return {{"p50", q.p50}, {"p99", q.p99}}; }

double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

}  // namespace

std::string to_text(const Report& report) {
  const double busy = share(report.busy_s, report.seconds);
  std::string text = fmt::format(
      "{} requests: {} finished, {} refused, {} aborted\n"
      "{} steps in {:.1f} simulated seconds, the device busy {:.0f} % of them; {:.1f} output tokens/s\n"
      "prompts: {} tokens, {} computed, {} from the cache; {} retractions\n"
      "waiting p50 {:.3f} s p99 {:.3f} s; first token p50 {:.3f} s p99 {:.3f} s; between tokens p50 {:.4f} s "
      "p99 {:.4f} s\n",
      report.requests, report.finished, report.refused, report.aborted, report.steps, report.seconds,
      100 * busy, share(static_cast<double>(report.output_tokens), report.seconds), report.prompt_tokens,
      report.computed_tokens, report.hit_tokens, report.retractions, report.waiting_s.p50,
      report.waiting_s.p99, report.ttft_s.p50, report.ttft_s.p99, report.itl_s.p50, report.itl_s.p99);
  const auto prompts = static_cast<double>(report.prompt_tokens);
  text += fmt::format("hits: {:.2f} % of the prompts; whole pages alone ",
                      100 * share(static_cast<double>(report.hit_tokens), prompts));
  text += report.aligned_hit_tokens >= 0
              ? fmt::format("would have hit {:.2f} %\n",
                            100 * share(static_cast<double>(report.aligned_hit_tokens), prompts))
              : "are not compared: a group forgets keys\n";
  for (const std::string& violation : report.violations) text += fmt::format("violation: {}\n", violation);
  return text;
}

std::string to_json(const Report& report, std::uint64_t seed) {
  Json json;
  json["requests"] = report.requests;
  json["finished"] = report.finished;
  json["refused"] = report.refused;
  json["aborted"] = report.aborted;
  json["steps"] = report.steps;
  json["prompt_tokens"] = report.prompt_tokens;
  json["computed_tokens"] = report.computed_tokens;
  json["hit_tokens"] = report.hit_tokens;
  json["hit_rate"] = share(static_cast<double>(report.hit_tokens), static_cast<double>(report.prompt_tokens));
  json["page_aligned"] = nullptr;
  if (report.aligned_hit_tokens >= 0) {
    json["page_aligned"] = {{"hit_tokens", report.aligned_hit_tokens},
                            {"hit_rate", share(static_cast<double>(report.aligned_hit_tokens),
                                               static_cast<double>(report.prompt_tokens))}};
  }
  json["copies"] = report.copies;
  for (std::size_t why = 0; why < report.why_miss.size(); ++why)
    json["why_miss"][std::string(kv::to_string(static_cast<kv::Miss>(why)))] = report.why_miss[why];
  json["output_tokens"] = report.output_tokens;
  json["retractions"] = report.retractions;
  json["refusals_injected"] = report.refusals_injected;
  json["pages_peak"] = report.pages_peak;
  json["seconds"] = report.seconds;
  json["tokens_s"] = share(static_cast<double>(report.output_tokens), report.seconds);
  json["busy_fraction"] = share(report.busy_s, report.seconds);
  json["waiting_s"] = quantiles(report.waiting_s);
  json["ttft_s"] = quantiles(report.ttft_s);
  json["itl_s"] = quantiles(report.itl_s);
  json["violations"] = report.violations;
  json["seed"] = seed;
  return json_text(json);
}

}  // namespace quire::simulate
