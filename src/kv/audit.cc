#include "kv/audit.h"

#include <fmt/core.h>

#include <unordered_map>

namespace quire::kv {
namespace {

GroupId group_id(int index) { return GroupId{static_cast<std::uint32_t>(index)}; }

Owner request(SequenceId sequence) { return Owner{OwnerKind::request, sequence.value}; }

std::string entry_name(const PagePool& pool, GroupId group, SequenceId sequence, std::int64_t entry,
                       PageId page) {
  return fmt::format("{}: entry {} of request {} (page {})", pool.group(group).name, entry, sequence.value,
                     page.value);
}

// Which requests hold how many pages according to the table, and whether two rows name one page.
using Tally = std::unordered_map<std::uint32_t, PageCounts>;

void audit_row(const PagePool& pool, const BlockTable& table, SlotId slot, GroupId group,
               std::unordered_map<std::uint32_t, std::uint32_t>& seen, Tally& tally,
               std::vector<std::string>& violations) {
  const SequenceId sequence = table.sequence(slot);
  const std::span<const PageId> row = table.row(slot, group);
  const std::int64_t begin = table.live_begin(slot, group);
  for (std::int64_t entry = 0; entry < static_cast<std::int64_t>(row.size()); ++entry) {
    const PageId page = row[static_cast<std::size_t>(entry)];
    const std::string name = entry_name(pool, group, sequence, entry, page);
    if (entry < begin) {
      if (page != kPaddingPage) violations.push_back(name + ": released but not 0");
      continue;
    }
    if (page == kPaddingPage) {
      violations.push_back(name + ": live but 0");
      continue;
    }
    if (!pool.holds(group, page, request(sequence))) {
      violations.push_back(name + ": not held by the request");
      continue;
    }
    ++tally[sequence.value][group];
    const std::int32_t written = table.written(slot);
    const bool writable = written < 0 ? entry + 1 == static_cast<std::int64_t>(row.size())
                                      : (entry + 1) * table.rule(group).page_tokens > written;
    if (writable && pool.sharers(group, page) != 1) {
      violations.push_back(fmt::format("{}: writable, with {} owners", name, pool.sharers(group, page)));
    }
    const auto [other, fresh] = seen.emplace(page.value, sequence.value);
    if (!fresh && other->second == sequence.value) violations.push_back(name + ": twice in one row");
  }
}

}  // namespace

std::vector<std::string> check_step(const PagePool& pool, const BlockTable& table,
                                    std::span<const TableUpdate> updates) {
  std::vector<std::string> violations = pool.check_counters();
  for (const TableUpdate& update : updates) {
    // A row may have gone on or gone away since; only what still stands is checked.
    if (update.page == kPaddingPage || !table.is_open(update.slot)) continue;
    const std::span<const PageId> row = table.row(update.slot, update.group);
    if (update.entry >= row.size() || row[update.entry] != update.page) continue;
    const SequenceId sequence = table.sequence(update.slot);
    if (!pool.holds(update.group, update.page, request(sequence))) {
      violations.push_back(entry_name(pool, update.group, sequence, update.entry, update.page) +
                           ": not held by the request");
    }
  }
  return violations;
}

std::vector<std::string> audit(const PagePool& pool, const BlockTable& table) {
  std::vector<std::string> violations = pool.check_all();
  Tally tally;
  for (int g = 0; g < table.groups(); ++g) {
    std::unordered_map<std::uint32_t, std::uint32_t> seen;
    for (std::int32_t s = 0; s <= table.slots(); ++s) {
      const SlotId slot{static_cast<std::uint32_t>(s)};
      if (table.is_open(slot)) {
        audit_row(pool, table, slot, group_id(g), seen, tally, violations);
      } else if (!table.row(slot, group_id(g)).empty()) {
        violations.push_back(
            fmt::format("{}: slot {} is nobody's and has a row", pool.group(group_id(g)).name, s));
      }
    }
  }
  for (const Holding& holding : pool.holdings()) {
    if (holding.owner.kind != OwnerKind::request || tally[holding.owner.id] == holding.pages) continue;
    for (int g = 0; g < table.groups(); ++g) {
      violations.push_back(fmt::format("{}: {} holds {} pages, its row has {}", pool.group(group_id(g)).name,
                                       to_string(holding.owner), holding.pages[group_id(g)],
                                       tally[holding.owner.id][group_id(g)]));
    }
  }
  return violations;
}

std::vector<std::string> leaks(const PagePool& pool) {
  std::vector<std::string> violations = pool.check_all();
  for (const Holding& holding : pool.holdings()) {
    if (holding.owner.kind == OwnerKind::tree) continue;  // a cache, not a leak: PrefixTree::check()
    for (int g = 0; g < pool.groups(); ++g) {
      const GroupId group = group_id(g);
      if (holding.pages[group] == 0 && holding.promised[group] == 0) continue;
      violations.push_back(fmt::format("{}: {} still holds {} pages and a promise of {}",
                                       pool.group(group).name, to_string(holding.owner), holding.pages[group],
                                       holding.promised[group]));
    }
  }
  return violations;
}

}  // namespace quire::kv
