// `quire bench offline`: a fixed load as one continuous batch.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/log.h"
#include "engine/bench_offline.h"
#include "engine/parts.h"

namespace quire::cli {

namespace {

using Json = nlohmann::ordered_json;

struct OfflineFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  std::string model;
  Options options;
  engine::BenchOfflineRequest load;
  bool json = false;
  bool explain = false;
};

Status offline(const OfflineFlags& flags) {
  if (flags.explain) {
    QUIRE_TRY(survey, engine::survey(flags.model, flags.options));
    print_explanation(survey.spec.trace, survey.ledger.lines());
  }
  QUIRE_TRY(report, engine::bench_offline(flags.model, flags.options, flags.load));
  if (flags.json) {
    const auto both = [](const engine::Percentiles& p) { return Json{{"p50", p.p50}, {"p99", p.p99}}; };
    Json json{{"requests", flags.load.requests},
              {"prompt_tokens", report.prompt_tokens},
              {"output_tokens", report.output_tokens},
              {"seconds", report.seconds},
              {"tokens_s", report.tokens_s},
              {"ttft_s", both(report.ttft_s)},
              {"itl_s", both(report.itl_s)},
              {"load_s", report.load_s},
              {"steps", report.steps},
              {"retractions", report.retractions}};
    fmt::print("{}\n", json_text(json));
    return {};
  }
  fmt::print(
      "{} requests, {} prompt and {} output tokens in {:.2f} s (after {:.2f} s of loading): {:.1f} output "
      "tok/s, "
      "{:.1f} with the prompts\nfirst token after {:.3f} s (p99 {:.3f}), between tokens {:.2f} ms (p99 "
      "{:.2f}), "
      "{} steps, {} retractions\n",
      flags.load.requests, report.prompt_tokens, report.output_tokens, report.seconds, report.load_s,
      report.tokens_s, static_cast<double>(report.prompt_tokens + report.output_tokens) / report.seconds,
      report.ttft_s.p50, report.ttft_s.p99, 1e3 * report.itl_s.p50, 1e3 * report.itl_s.p99, report.steps,
      report.retractions);
  return {};
}

}  // namespace

Command make_bench_offline(CLI::App& group) {
  auto flags = std::make_shared<OfflineFlags>();
  constexpr int kMost = 1 << 24;
  Flags command(group, "offline", "a fixed load as one continuous batch, without a server");
  command.need("MODEL", &flags->model, "a Hugging Face folder or a .gguf file")
      .number("--requests", &flags->load.requests, 1, kMost, "requests, all submitted at once")
      .number("--prompt", &flags->load.prompt_tokens, 1, kMost, "prompt tokens of each")
      .number("--output", &flags->load.output_tokens, 1, kMost, "output tokens of each")
      .number("--seed", &flags->load.seed, "of the random prompts")
      .json(&flags->json);
  add_engine_settings(*flags->settings, &flags->options, &flags->explain);
  return {&command.app(), flags->settings, [flags] { return offline(*flags); }};
}

}  // namespace quire::cli
