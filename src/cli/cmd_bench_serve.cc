// `quire bench serve`: a load on a server with OpenAI's API, ours or another.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "cli/command.h"
#include "cli/flags.h"
#include "server/bench/bench_serve.h"

namespace quire::cli {

namespace {

struct ServeLoadFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  server::bench::BenchServeRequest load;
  std::string prompts;
  std::string key_file;
  std::string save;
  std::string plot;
  double ttft_p99_ms = 0.0;
  double itl_p99_ms = 0.0;
  bool clients_given = false;
  bool may_end = false;  // --stop-at-end
  bool json = false;
};

Status serve_load(ServeLoadFlags flags) {
  if (flags.clients_given && flags.load.rate > 0.0)
    return bad_input(
        "--clients is of the closed loop and --rate of the open one, in which requests begin at their own "
        "times: give one of them");
  QUIRE_TRY_STATUS(check_writable("--save", flags.save));
  QUIRE_TRY_STATUS(check_writable("--plot", flags.plot));
  server::bench::BenchServeRequest& load = flags.load;
  load.limits = {flags.ttft_p99_ms * 1e-3, flags.itl_p99_ms * 1e-3};
  load.wording.ignore_eos = !flags.may_end;
  if (!flags.prompts.empty()) {
    QUIRE_TRY(text, read_file(flags.prompts));
    if (text.empty())
      return bad_input(fmt::format("{} is empty: give one JSON object a line", flags.prompts));
    load.prompts_text = std::move(text);
  }
  if (!flags.key_file.empty()) {
    QUIRE_TRY(text, read_file(flags.key_file));
    load.key = text.substr(0, text.find_first_of("\r\n"));
  }
  const bool shows = isatty(STDERR_FILENO) != 0;
  const auto progress = [shows](std::size_t ended, std::size_t all) {
    if (shows) fmt::print(stderr, "\r{} of {} requests ", ended, all);
    return true;
  };
  QUIRE_TRY(result, server::bench::bench_serve(load, progress));
  if (shows) fmt::print(stderr, "\r\033[K");
  if (flags.json) {
    fmt::print("{}\n", server::bench::bench_serve_json(load, result, false));
  } else {
    fmt::print("{}", server::bench::bench_serve_text(load, result));
  }
  std::fflush(stdout);
  if (!flags.save.empty())
    QUIRE_TRY_STATUS(write_file(flags.save, server::bench::bench_serve_json(load, result, true) + "\n"));
  if (!flags.plot.empty())
    QUIRE_TRY_STATUS(write_file(flags.plot, server::bench::bench_serve_svg(load, result)));
  if (result.report.failed > 0 || (load.limits.any() && !result.report.goodput.met))
    return check_failed_error();
  return {};
}

}  // namespace

Command make_bench_serve(CLI::App& group) {
  auto flags = std::make_shared<ServeLoadFlags>();
  server::bench::BenchServeRequest& load = flags->load;
  constexpr int kMost = 1 << 24;
  constexpr double kLeastLimit = 1e-3;  // ms: less than any clock here tells
  Flags command(
      group, "serve",
      "a load on a server with OpenAI's API, and its times; exit code 1 when a request fails or a limit "
      "is not met");
  command.text("--url", &load.url, "the server")
      .text("--model", &load.wording.model, "its name for the model; else the first that it lists")
      .file("--api-key-file", &flags->key_file, "its first line is sent as the API key")
      .on("--chat", &load.wording.chat, "/v1/chat/completions instead of /v1/completions")
      .file("--prompts", &flags->prompts,
            "a JSON object a line: \"prompt\" or \"messages\", and any field of the API; else random "
            "words")
      .number("--requests", &load.requests, 0, kMost, "requests; 0: each line of --prompts once, or 64")
      .number("--clients", &load.clients, 1, 4096, "closed loop: requests under way at any time",
              &flags->clients_given)
      .number("--rate", &load.rate, 1e-4, 1e6,
              "open loop: so many requests a second, at random times; all within a day")
      .number("--prefixes", &load.synthetic.prefixes, 1, kMost, "random words: different shared beginnings")
      .number("--prefix", &load.synthetic.prefix_words, 0, kMost, "words (about tokens) of each")
      .number("--prompt", &load.synthetic.own_words, 1, kMost, "words of each request behind it")
      .number("--output", &load.wording.output_tokens, 1, kMost, "tokens of each answer")
      .on("--stop-at-end", &flags->may_end, "answers may end before --output tokens")
      .number("--temperature", &load.wording.temperature, 0.0, 2.0, "of sampling; else greedy")
      .number("--seed", &load.synthetic.seed, "of the words and times")
      .number("--warmup", &load.warmup, 0, kMost, "requests before, with other words, that are not measured")
      .number("--timeout", &load.timeout_s, 0.1, 1e6, "seconds for one request")
      .number("--ttft-p99", &flags->ttft_p99_ms, kLeastLimit, 1e9,
              "limit in milliseconds: p99 of the first token")
      .number("--itl-p99", &flags->itl_p99_ms, kLeastLimit, 1e9, "limit in milliseconds: p99 between tokens")
      .file("--save", &flags->save, "the figures and every request, as JSON")
      .file("--plot", &flags->plot, "a picture, as SVG")
      .json(&flags->json);
  return {&command.app(), flags->settings, [flags] { return serve_load(*flags); }};
}

}  // namespace quire::cli
