#include "cli/log.h"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "engine/ledger.h"

namespace quire::cli {

void add_log_settings(Settings& settings, LogOptions* options) {
  static constexpr std::string_view kLevels[] = {"debug", "info", "warn", "error", "off"};
  static constexpr std::string_view kFormats[] = {"text", "json"};
  const auto add = [&](const char* name, std::string* target, std::span<const std::string_view> legal,
                       const char* help) {
    settings.add({.name = name,
                  .group = "Everywhere",
                  .value_name = fmt::format("{}", fmt::join(legal, "|")),
                  .help = help,
                  .set = into(target, legal),
                  .show = [target] { return *target; }});
  };
  add("log-level", &options->level, kLevels, "least level of what is logged");
  add("log-format", &options->format, kFormats, "of log lines, to stderr");
}

namespace {

constexpr const char* kJsonPattern = R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","message":"%v"})";

bool json_lines = false;

}  // namespace

void set_up_log(const LogOptions& options) {
  json_lines = options.format == "json";
  auto logger = std::make_shared<spdlog::logger>("quire", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.level));
  // Messages of ours hold no quotes or control characters, so the JSON pattern needs no escaping.
  logger->set_pattern(json_lines ? kJsonPattern : "%H:%M:%S.%e %l: %v");
  spdlog::set_default_logger(logger);
}

void announce(std::string_view line, std::string_view level) {
  if (json_lines) {
    // This may hold anything, and is heard whatever the level: past the logger.
    const std::string escaped = json_text(nlohmann::json(line));
    const std::string_view inside(escaped.data() + 1, escaped.size() - 2);
    spdlog::memory_buf_t out;
    spdlog::pattern_formatter(kJsonPattern)
        .format(spdlog::details::log_msg("", spdlog::level::from_str(std::string(level)), inside), out);
    fmt::print(stderr, "{}", fmt::to_string(out));
  } else {
    fmt::print(stderr, "quire: {}\n", line);
  }
  std::fflush(stderr);
}

void log_engine(const EngineInfo& info, bool explain) {
  for (const std::string& note : info.notes) spdlog::info("{}", note);
  if (explain) print_explanation(info.trace, info.ledger);
}

void print_explanation(std::span<const std::string> trace, std::span<const LedgerLine> ledger) {
  for (const std::string& line : trace) fmt::print(stderr, "{}\n", line);
  if (!ledger.empty()) fmt::print(stderr, "{}", engine::to_string(ledger));
}

}  // namespace quire::cli
