#include "cli/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>

#include "base/nearest.h"
#include "engine/ledger.h"

namespace quire::cli {

Status set_up_log(const std::string& level, const std::string& format) {
  static constexpr std::array<std::string_view, 5> kLevels = {"debug", "info", "warn", "error", "off"};
  static constexpr std::array<std::string_view, 2> kFormats = {"text", "json"};
  if (std::find(kLevels.begin(), kLevels.end(), level) == kLevels.end()) {
    return bad_input(fmt::format("--log-level {} is unknown{}", level, did_you_mean(level, kLevels)));
  }
  if (std::find(kFormats.begin(), kFormats.end(), format) == kFormats.end()) {
    return bad_input(fmt::format("--log-format {} is unknown{}", format, did_you_mean(format, kFormats)));
  }
  auto logger = std::make_shared<spdlog::logger>("quire", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(level));
  // Messages of ours hold no quotes or control characters, so the JSON pattern needs no escaping.
  logger->set_pattern(format == "json" ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","message":"%v"})"
                                       : "%H:%M:%S.%e %l: %v");
  spdlog::set_default_logger(logger);
  return {};
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
