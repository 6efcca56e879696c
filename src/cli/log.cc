#include "cli/log.h"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <nlohmann/json.hpp>

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

bool json_lines = false;

}  // namespace

void set_up_log(const LogOptions& options) {
  json_lines = options.format == "json";
  auto logger = std::make_shared<spdlog::logger>("quire", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.level));
  // Messages of ours hold no quotes or control characters, so the JSON pattern needs no escaping.
  logger->set_pattern(json_lines ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","message":"%v"})"
                                 : "%H:%M:%S.%e %l: %v");
  spdlog::set_default_logger(logger);
}

void announce(std::string_view line, std::string_view level) {
  if (json_lines) {
    // As the pattern above has it, but this may hold anything.
    spdlog::pattern_formatter time("%Y-%m-%dT%H:%M:%S.%e", spdlog::pattern_time_type::local, "");
    spdlog::memory_buf_t now;
    time.format(spdlog::details::log_msg("", spdlog::level::info, ""), now);
    nlohmann::ordered_json json{{"time", fmt::to_string(now)}, {"level", level}, {"message", line}};
    fmt::print(stderr, "{}\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
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
