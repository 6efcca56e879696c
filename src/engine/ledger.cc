#include "engine/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::engine {

void Ledger::add(std::string owner, std::int64_t bytes) {
  QUIRE_CHECK(bytes >= 0 && bytes_of(owner) == 0, "owner={} bytes={} listed={}", owner, bytes,
              bytes_of(owner));
  if (bytes > 0) lines_.push_back(LedgerLine{std::move(owner), bytes, false});
}

void Ledger::add_mapped(std::string owner, std::int64_t bytes) {
  add(std::move(owner), bytes);
  if (bytes > 0) lines_.back().mapped = true;
}

void Ledger::add_host(std::string owner, std::int64_t bytes) {
  add(std::move(owner), bytes);
  if (bytes > 0) lines_.back().host = true;
}

std::int64_t Ledger::bytes_of(std::string_view owner) const {
  for (const LedgerLine& line : lines_)
    if (line.owner == owner) return line.bytes;
  return 0;
}

std::int64_t Ledger::private_bytes() const {
  std::int64_t sum = 0;
  for (const LedgerLine& line : lines_) sum += line.mapped || line.host ? 0 : line.bytes;
  return sum;
}

std::int64_t Ledger::total_bytes() const {
  std::int64_t sum = 0;
  for (const LedgerLine& line : lines_) sum += line.bytes;
  return sum;
}

Status Ledger::check(std::int64_t available) const {
  if (private_bytes() <= available) return {};
  return no_resources(
      fmt::format("this run needs {} of memory and {} are available:\n{}use a smaller --kv-memory, "
                  "--max-running or --chunk-tokens",
                  bytes_to_string(private_bytes()), bytes_to_string(available), to_string(lines_)));
}

std::string to_string(std::span<const LedgerLine> ledger) {
  std::vector<LedgerLine> lines(ledger.begin(), ledger.end());
  std::int64_t sum = 0;
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string text;
  for (const LedgerLine& line : lines) {
    text += fmt::format("  {:>10}  {}{}\n", bytes_to_string(line.bytes), line.owner,
                        line.mapped ? " (file)"
                        : line.host ? " (host memory)"
                                    : "");
    sum += line.bytes;
  }
  return text + fmt::format("  {:>10}  in all\n", bytes_to_string(sum));
}

std::string bytes_to_string(std::int64_t bytes) {
  constexpr std::int64_t kKi = 1024;
  if (bytes < kKi) return fmt::format("{} bytes", bytes);
  if (bytes < kKi * kKi) return fmt::format("{:.4g} KiB", static_cast<double>(bytes) / kKi);
  if (bytes < kKi * kKi * kKi) return fmt::format("{:.4g} MiB", static_cast<double>(bytes) / (kKi * kKi));
  return fmt::format("{:.4g} GiB", static_cast<double>(bytes) / (kKi * kKi * kKi));
}

}  // namespace quire::engine
