// `quire simulate`: a trace through the real scheduler, pool and tables, with a device model for a device.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "cli/scheduling.h"
#include "engine/crash_note.h"
#include "engine/limits.h"
#include "simulate/shrink.h"
#include "simulate/simulation.h"
#include "simulate/synthetic.h"
#include "simulate/trace_file.h"

namespace quire::cli {

namespace {

constexpr int kShrinkTrials = 2000;

// What `auto` stands for, where an engine asks the model.
constexpr std::int32_t kPageTokens = 16;
constexpr std::int32_t kRunning = 64;
constexpr std::int32_t kContext = 1 << 17;
constexpr std::int32_t kChunkTokens = 2048;
constexpr std::int32_t kWaiting = 1 << 20;

struct Simulate {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  std::string trace;
  std::string synthetic;
  std::string calibration;
  std::string groups = "full";
  std::string write_trace;
  std::string shrink;
  std::uint64_t seed = 1;
  std::int32_t kv_tokens = 1 << 17;
  std::int32_t client_buffer = 64;
  std::int32_t copy_min_tokens = 1;
  std::int32_t audit_every = 1000;
  bool json = false;
  Options options;
};

Result<std::vector<simulate::GroupSpec>> parse_groups(const std::string& text) {
  std::vector<simulate::GroupSpec> groups;
  // One item more than there are commas, so an empty one is seen wherever it stands.
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view item = std::string_view(text).substr(begin, comma - begin);
    begin = comma + 1;
    const std::string_view name = item.substr(0, item.find(':'));
    const std::string_view width = item.substr(std::min(item.size(), name.size() + 1));
    simulate::GroupSpec group{std::string(name), kv::Keep::all, 0};
    if (name == "window") group.keep = kv::Keep::window;
    if (name == "chunk") group.keep = kv::Keep::chunk;
    const bool sized = parse_number(width, &group.width) && group.width >= 1;
    if (name == "full" ? item != "full" : group.keep == kv::Keep::all || !sized)
      return bad_input(fmt::format("--groups: '{}' is none of full, window:TOKENS and chunk:TOKENS", item));
    groups.push_back(std::move(group));
  }
  return groups;
}

// The same run again, from its trace or its seed.
std::string command_of(const Simulate& run, const std::string& trace) {
  std::string command = "quire simulate";
  const auto add = [&command](const char* flag, const std::string& value) {
    command += fmt::format(" {} '{}'", flag, value);
  };
  if (!trace.empty()) {
    add("--trace", trace);
  } else {
    add("--synthetic", run.synthetic);
  }
  command += fmt::format(" --seed {}", run.seed);
  for (const Setting& setting : run.settings->all())
    if (setting.origin != Origin::standard && setting.name != "seed")
      add(("--" + setting.name).c_str(), setting.show());
  return command;
}

// An engine refuses more; a simulation of it is no engine's.
Status check_limits(const Options& options) {
  const auto at_most = [](const char* what, const char* flag, std::int64_t value,
                          std::int64_t most) -> Status {
    if (value <= most) return {};
    return bad_input(
        fmt::format("{0} {1} is over an engine's {2}: use --{3} {2} or less", what, value, most, flag));
  };
  QUIRE_TRY_STATUS(at_most("running sequences", "max-running", options.max_running, engine::kMaxRunning));
  QUIRE_TRY_STATUS(at_most("chunk tokens", "chunk-tokens", options.chunk_tokens, engine::kMaxChunkTokens));
  return at_most("waiting requests", "max-waiting", options.max_waiting, engine::kMaxWaiting);
}

Result<simulate::SimulationConfig> config_of(const Simulate& run) {
  QUIRE_TRY_STATUS(check_limits(run.options));
  const auto or_else = [](std::int32_t said, std::int32_t standard) { return said > 0 ? said : standard; };
  simulate::SimulationConfig config;
  QUIRE_TRY(groups, parse_groups(run.groups));
  config.groups = std::move(groups);
  config.page_tokens = or_else(run.options.page_size, kPageTokens);
  config.kv_tokens = run.kv_tokens;
  config.scheduler.max_running = or_else(run.options.max_running, kRunning);
  config.scheduler.chunk_tokens = or_else(run.options.chunk_tokens, kChunkTokens);
  config.scheduler.max_context = or_else(run.options.max_context, kContext);
  config.scheduler.max_waiting = or_else(run.options.max_waiting, kWaiting);
  QUIRE_TRY(policy, parse_policy(run.options.schedule.empty() ? scheduler::kPolicyNames.front()
                                                              : run.options.schedule));
  config.scheduler.policy = policy;
  config.scheduler.target_step_us = static_cast<std::int64_t>(run.options.target_itl_ms * 1e3f);
  QUIRE_TRY(eviction, parse_eviction(run.options.cache_eviction.empty() ? kv::kEvictionNames.front()
                                                                        : run.options.cache_eviction));
  config.scheduler.cache.policy = eviction;
  config.scheduler.cache.copy_min_tokens = run.copy_min_tokens;
  if (!run.options.prefix_cache.empty() && run.options.prefix_cache != "on" &&
      run.options.prefix_cache != "off")
    return bad_input(fmt::format("--prefix-cache {}: on or off", run.options.prefix_cache));
  config.scheduler.cache.enabled = run.options.prefix_cache != "off";
  config.overlap = run.options.overlap;
  config.client_buffer_tokens = run.client_buffer;
  config.audit_every = run.audit_every;
  if (run.calibration.empty()) return config;
  QUIRE_TRY(text, read_file(run.calibration));
  QUIRE_TRY(fit, simulate::fit_bench_step(text, run.calibration));
  config.device = fit.model;
  fmt::print(stderr, "device model of {} cells: {}; off by {:.1f} % on average, {:.1f} % at worst\n",
             fit.cells, simulate::to_string(fit.model), 100 * fit.mean_error, 100 * fit.worst_error);
  if (!fit.note.empty()) fmt::print(stderr, "note: {}\n", fit.note);
  return config;
}

Result<simulate::Trace> trace_of(const Simulate& run) {
  if (run.trace.empty() == run.synthetic.empty())
    return bad_input("give --trace FILE or --synthetic SPEC, one of the two");
  if (!run.synthetic.empty()) {
    QUIRE_TRY(spec, simulate::parse_synthetic(run.synthetic));
    return simulate::make_trace(spec, run.seed);
  }
  QUIRE_TRY(text, read_file(run.trace));
  return simulate::parse_trace(text, run.trace);
}

// Whether a run of the trace violates a rule or fails a check, seen from outside: a check ends its process.
bool fails_in_a_child(const simulate::Trace& trace, const simulate::SimulationConfig& config) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
    const Result<simulate::Report> report = simulate::simulate(trace, config);
    _exit(report.ok() && !report->violations.empty() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

// Leaves the smallest trace that still fails in the file of --shrink and says how to run it.
Status shrink_to_file(const Simulate& run, const simulate::Trace& trace,
                      const simulate::SimulationConfig& config) {
  const simulate::Fails fails = [&config](const simulate::Trace& part) {
    return fails_in_a_child(part, config);
  };
  const simulate::Shrunk shrunk = simulate::shrink(trace, fails, kShrinkTrials);
  QUIRE_TRY_STATUS(write_file(run.shrink, simulate::to_text(shrunk.trace)));
  fmt::print(stderr, "shrunk to {} of {} requests in {} runs: {}\n", shrunk.trace.requests.size(),
             trace.requests.size(), shrunk.trials, command_of(run, run.shrink));
  return check_failed_error();
}

Status run_command(const Simulate& run) {
  QUIRE_TRY_STATUS(check_writable("--shrink", run.shrink));
  QUIRE_TRY_STATUS(check_writable("--write-trace", run.write_trace));
  QUIRE_TRY(config, config_of(run));
  QUIRE_TRY(trace, trace_of(run));
  if (!run.write_trace.empty()) QUIRE_TRY_STATUS(write_file(run.write_trace, simulate::to_text(trace)));
  const std::string command = command_of(run, run.trace);
  engine::CrashNoteEntry note;
  note.set(fmt::format("seed {}; again: {}", run.seed, command));
  if (!run.shrink.empty() && fails_in_a_child(trace, config)) {
    // A check may have ended it; then nobody knows how far it came.
    fmt::print(stderr, "seed {} fails: {}\n", run.seed, command);
    return shrink_to_file(run, trace, config);
  }
  QUIRE_TRY(report, simulate::simulate(trace, config));
  if (run.json) {
    fmt::print("{}\n", simulate::to_json(report, run.seed));
  } else {
    fmt::print("{}", simulate::to_text(report));
  }
  if (report.violations.empty()) return {};
  fmt::print(stderr, "seed {} fails at step {}, with {} requests arrived; again: {}\n", run.seed,
             report.violation_step, report.requests_until_violation, command);
  return check_failed_error();
}

void add_settings(Simulate* run) {
  const std::string group = "Simulation";
  const auto count = [&](const char* name, const char* help, std::int32_t* target, std::int64_t low,
                         std::int64_t high) {
    run->settings->add({.name = name,
                        .group = group,
                        .value_name = "N",
                        .help = help,
                        .set = into(target, low, high),
                        .show = [target] { return std::to_string(*target); }});
  };
  const auto text = [&](const char* name, const char* value, const char* help, std::string* target) {
    run->settings->add({.name = name,
                        .group = group,
                        .value_name = value,
                        .help = help,
                        .set = into(target),
                        .show = [target] { return *target; }});
  };
  run->settings->add({.name = "seed",
                      .group = group,
                      .value_name = "N",
                      .help = "of the synthetic trace; default 1",
                      .set = into(&run->seed),
                      .show = [run] { return std::to_string(run->seed); }});
  text("calibration", "FILE", "device model from `quire bench step --chunk ... --json`", &run->calibration);
  text("groups", "LIST", "KV groups: full, window:TOKENS, chunk:TOKENS; default full", &run->groups);
  count("copy-min-tokens", "fewer tokens of a page are computed again, not copied; default 1",
        &run->copy_min_tokens, 1, 256);
  count("kv-tokens", "capacity of the KV cache in tokens", &run->kv_tokens, 1, 1 << 30);
  count("client-buffer", "unread tokens with which a slow client is dropped; default 64", &run->client_buffer,
        0, 1 << 30);
  count("audit-every", "steps between full audits; default 1000, 0: only at the end", &run->audit_every, 0,
        1 << 30);
}

}  // namespace

Command make_simulate(CLI::App& root) {
  auto run = std::make_shared<Simulate>();
  Flags command(root, "simulate", "scheduler, pool and tables under a trace, without a device");
  command.file("--trace", &run->trace, "JSON lines: Mooncake's format or Quire's own")
      .text(
          "--synthetic", &run->synthetic,
          "KIND[:key=value,...]: shared, chat, agents, bursts or mix; keys requests, rate, prompt, message, "
          "output, prefixes, context, aborts, refusals, slow")
      .file("--write-trace", &run->write_trace, "write the trace to this file, in Quire's format")
      .file("--shrink", &run->shrink, "if the run fails: the smallest trace that does, to this file")
      .json(&run->json);
  add_settings(run.get());
  constexpr std::string_view kEngine[] = {"page-size",    "max-running",    "max-context", "chunk-tokens",
                                          "prefix-cache", "cache-eviction", "schedule",    "max-waiting",
                                          "target-itl",   "overlap"};
  add_engine_settings(*run->settings, &run->options, kEngine);
  const auto describe = [&run](const char* name, const char* what, std::int32_t standard) {
    run->settings->describe(name, fmt::format("{}; auto is {}", what, standard));
  };
  describe("page-size", "tokens per KV page, 1..256", kPageTokens);
  describe("max-running", "sequences that run together", kRunning);
  describe("max-context", "tokens of prompt and answer", kContext);
  describe("chunk-tokens", "most prompt tokens of one step", kChunkTokens);
  describe("max-waiting", "requests in the queue, which refuses more", kWaiting);
  return {&command.app(), run->settings, [run] { return run_command(*run); },
          "--kv-tokens, --max-context or trace"};
}

}  // namespace quire::cli
