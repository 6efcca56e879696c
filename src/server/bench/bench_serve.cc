#include "server/bench/bench_serve.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "server/bench/plot.h"

namespace quire::server::bench {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kRequests = 64;
constexpr int kMostConnections = 4096;    // of an open loop
constexpr double kMostSeconds = 86400.0;  // of an open loop's arrivals

// What the server calls its model.
Result<std::string> first_model(const Target& target, double timeout_s) {
  const LoadPlan plan{.clients = 1, .timeout_s = timeout_s};
  QUIRE_TRY(outcomes, run_load(target, {Job{.path = "/v1/models"}}, plan, [](std::size_t) { return true; }));
  const Outcome& outcome = outcomes[0];
  if (!outcome.ok())
    return bad_input(
        fmt::format("{}/v1/models: {}: name the model with --model", target.url(), outcome.error));
  const Json json = Json::parse(outcome.body, nullptr, false);
  const Json::json_pointer name("/data/0/id");
  if (!json.is_object() || !json.contains(name) || !json[name].is_string())
    return bad_input(fmt::format("{}/v1/models lists no model: name it with --model", target.url()));
  return json[name].get<std::string>();
}

Result<std::vector<Job>> jobs_of(const BenchServeRequest& request) {
  if (!request.prompts_text.empty())
    return jobs_of_file(request.prompts_text, request.wording, request.requests);
  Synthetic synthetic = request.synthetic;
  synthetic.requests = request.requests > 0 ? request.requests : kRequests;
  return synthetic_jobs(synthetic, request.wording);
}

// A run that ends: an open loop takes as long as its arrivals.
Status check_rate(double rate, std::size_t requests) {
  const double all = static_cast<double>(requests);
  if (all / rate <= kMostSeconds) return {};
  // Rounded up at the digits that are shown, so that the rate named is legal.
  const double least = std::ceil(all / kMostSeconds * 1e6) / 1e6;
  return bad_input(fmt::format(
      "{} requests at {} a second would come over {:.1f} days, and 1 is the most: use --rate {:.6f} "
      "or more{}",
      requests, rate, all / rate / kMostSeconds, least,
      rate * kMostSeconds >= 1.0 ? fmt::format(", or --requests {} or fewer",
                                               static_cast<std::int64_t>(std::floor(rate * kMostSeconds)))
                                 : ""));
}

Status warm_up(const Target& target, const BenchServeRequest& request) {
  Synthetic synthetic = request.synthetic;
  synthetic.requests = request.warmup;
  synthetic.seed ^= 0xa11e;
  const std::vector<Job> jobs = synthetic_jobs(synthetic, request.wording);
  const LoadPlan plan{.clients = request.clients, .timeout_s = request.timeout_s};
  QUIRE_TRY(outcomes, run_load(target, jobs, plan, [](std::size_t) { return true; }));
  for (const Outcome& outcome : outcomes)
    if (!outcome.ok())
      return bad_input(fmt::format("a request before the measurement failed: {}", outcome.error));
  return {};
}

Json spread_json(const Spread& s) {
  return {{"mean", s.mean}, {"p50", s.p50}, {"p90", s.p90}, {"p95", s.p95}, {"p99", s.p99}, {"max", s.max}};
}

Json sample_json(const Outcome& outcome) {
  Json json{{"begin_s", outcome.begin_s}, {"e2e_s", outcome.end_s - outcome.begin_s}};
  if (outcome.texts > 0) json["ttft_s"] = outcome.first_s - outcome.begin_s;
  json["itl_s"] = outcome.gaps_s;
  if (outcome.usage.has_value()) {
    json["prompt_tokens"] = outcome.usage->prompt_tokens;
    json["output_tokens"] = outcome.usage->output_tokens;
    json["cached_tokens"] = outcome.usage->cached_tokens;
  }
  if (!outcome.ok()) json["error"] = outcome.error;
  return json;
}

std::string loop_text(const BenchServeRequest& request) {
  return request.rate > 0.0 ? fmt::format("open loop, {:.4g} requests a second", request.rate)
                            : fmt::format("closed loop, {} clients", request.clients);
}

}  // namespace

Result<BenchServeResult> bench_serve(BenchServeRequest request,
                                     const std::function<bool(std::size_t, std::size_t)>& progress) {
  QUIRE_TRY(target, parse_target(request.url));
  target.key = request.key;
  if (request.wording.model.empty()) {
    QUIRE_TRY(model, first_model(target, request.timeout_s));
    request.wording.model = model;
  }
  QUIRE_TRY(jobs, jobs_of(request));
  if (request.rate > 0.0) QUIRE_TRY_STATUS(check_rate(request.rate, jobs.size()));
  if (request.warmup > 0) QUIRE_TRY_STATUS(warm_up(target, request));
  LoadPlan plan{.clients = request.clients, .timeout_s = request.timeout_s};
  if (request.rate > 0.0) {
    set_arrivals(jobs, request.rate, request.synthetic.seed);
    plan.open = true;
    plan.clients = kMostConnections;
  }
  const std::size_t all = jobs.size();
  QUIRE_TRY(outcomes, run_load(target, jobs, plan, [&](std::size_t ended) { return progress(ended, all); }));
  BenchServeResult result{.url = target.url(), .model = request.wording.model};
  result.report = report_of(outcomes, request.limits);
  for (Outcome& outcome : outcomes) outcome.body.clear();
  result.outcomes = std::move(outcomes);
  return result;
}

std::string bench_serve_json(const BenchServeRequest& request, const BenchServeResult& result, bool samples) {
  const Report& report = result.report;
  Json json{{"target", result.url},
            {"model", result.model},
            {"endpoint", request.wording.chat ? "chat" : "completions"},
            {"loop", request.rate > 0.0 ? "open" : "closed"},
            {"clients", request.rate > 0.0 ? Json(nullptr) : Json(request.clients)},
            {"rate", request.rate > 0.0 ? Json(request.rate) : Json(nullptr)},
            {"seed", request.synthetic.seed},
            {"requests", report.requests},
            {"completed", report.completed},
            {"failed", report.failed},
            {"errors", report.errors},
            {"prompt_tokens", report.prompt_tokens},
            {"cached_tokens", report.cached_tokens},
            {"output_tokens", report.output_tokens},
            {"uncounted", report.uncounted},
            {"seconds", report.seconds},
            {"requests_s", report.requests_s},
            {"tokens_s", report.tokens_s},
            {"total_tokens_s", report.total_tokens_s},
            {"ttft_s", spread_json(report.ttft_s)},
            {"itl_s", spread_json(report.itl_s)},
            {"tpot_s", spread_json(report.tpot_s)},
            {"e2e_s", spread_json(report.e2e_s)},
            {"goodput", nullptr}};
  if (request.limits.any()) {
    const auto limit = [](double seconds) { return seconds > 0.0 ? Json(seconds) : Json(nullptr); };
    json["goodput"] = {{"ttft_p99_limit_s", limit(request.limits.ttft_p99_s)},
                       {"itl_p99_limit_s", limit(request.limits.itl_p99_s)},
                       {"met", report.goodput.met},
                       {"requests", report.goodput.requests},
                       {"share", report.goodput.share},
                       {"requests_s", report.goodput.requests_s},
                       {"tokens_s", report.goodput.tokens_s}};
  }
  if (samples) {
    Json& list = json["samples"] = Json::array();
    for (const Outcome& outcome : result.outcomes)
      if (outcome.begin_s >= 0.0) list.push_back(sample_json(outcome));
  }
  return json_text(json);
}

std::string bench_serve_text(const BenchServeRequest& request, const BenchServeResult& result) {
  const Report& report = result.report;
  std::string text = fmt::format(
      "{} at {}, {}\n{} of {} requests completed in {:.2f} s: {} prompt tokens ({} cached) and {} output "
      "tokens\n"
      "{:.1f} output tok/s, {:.1f} with the prompts, {:.2f} requests/s\n\n"
      "{:<16}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n",
      result.model, result.url, loop_text(request), report.completed, report.requests, report.seconds,
      report.prompt_tokens, report.cached_tokens, report.output_tokens, report.tokens_s,
      report.total_tokens_s, report.requests_s, "milliseconds", "mean", "p50", "p90", "p95", "p99", "max");
  for (const auto& [name, s] :
       {std::pair("first token", report.ttft_s), std::pair("between tokens", report.itl_s),
        std::pair("per token", report.tpot_s), std::pair("whole request", report.e2e_s)})
    text += fmt::format("{:<16}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}\n", name, 1e3 * s.mean,
                        1e3 * s.p50, 1e3 * s.p90, 1e3 * s.p95, 1e3 * s.p99, 1e3 * s.max);
  if (request.limits.any())
    text += fmt::format(
        "\nlimits {}: {} of {} requests good ({:.1f} %), goodput {:.2f} requests/s, {:.1f} tok/s\n",
        report.goodput.met ? "met" : "NOT met", report.goodput.requests, report.requests,
        100 * report.goodput.share, report.goodput.requests_s, report.goodput.tokens_s);
  if (report.uncounted > 0)
    text += fmt::format("{} answers came without usage: each piece of text counts as a token\n",
                        report.uncounted);
  for (const auto& [error, count] : report.errors) text += fmt::format("{} times: {}\n", count, error);
  return text;
}

std::string bench_serve_svg(const BenchServeRequest& request, const BenchServeResult& result) {
  return plot_svg(result.outcomes, result.report, request.limits,
                  fmt::format("{} at {}, {}", result.model, result.url, loop_text(request)));
}

}  // namespace quire::server::bench
