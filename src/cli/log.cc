#include "cli/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

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

void set_up_log(const LogOptions& options) {
  auto logger = std::make_shared<spdlog::logger>("quire", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.level));
  // Messages of ours hold no quotes or control characters, so the JSON pattern needs no escaping.
  logger->set_pattern(options.format == "json"
                          ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","message":"%v"})"
                          : "%H:%M:%S.%e %l: %v");
  spdlog::set_default_logger(logger);
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
