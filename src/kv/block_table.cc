#include "kv/block_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace quire::kv {
namespace {

// A table of so many bytes is no request for memory, even where the system would promise any.
constexpr std::size_t kMostBytes = std::size_t{1} << 40;

}  // namespace

void BlockTable::Free::operator()(PageId* pages) const { std::free(pages); }

BlockTable::BlockTable(TableConfig config, Unfilled)
    : config_(std::move(config)), slots_(static_cast<std::size_t>(config_.slots) + 1) {
  QUIRE_CHECK(config_.slots >= 1 && config_.max_tokens >= 1 && config_.groups.size() <= kMaxGroups,
              "slots={} tokens={} groups={}", config_.slots, config_.max_tokens, config_.groups.size());
  constexpr std::size_t kUpdatesPerStep = 4096;  // room before the list grows
  updates_.reserve(kUpdatesPerStep);
}

BlockTable::BlockTable(TableConfig config) : BlockTable(std::move(config), Unfilled{}) {
  const std::int64_t missing = fill();
  QUIRE_CHECK(missing == 0, "a block table of {} slots x {} tokens", config_.slots, config_.max_tokens);
}

Result<BlockTable> BlockTable::create(TableConfig config) {
  BlockTable table(std::move(config), Unfilled{});
  const std::int64_t missing = table.fill();
  if (missing == 0) return table;
  return no_resources(fmt::format(
      "the block table of {} sequences with {} tokens of context needs {} bytes of memory, which cannot be "
      "had: use a smaller --max-context or --max-running, or larger pages",
      table.config_.slots, table.config_.max_tokens, missing));
}

std::int64_t BlockTable::fill() {
  const auto rows = static_cast<std::size_t>(config_.slots) + 1;
  for (const GroupRule& rule : config_.groups) {
    Group group;
    group.entries = pages_for(rule, config_.max_tokens);
    // calloc, not a vector: rows are sized for the longest context, and what no sequence reaches must not
    // become resident memory.
    const std::size_t entries = rows * static_cast<std::size_t>(group.entries);
    if (entries < kMostBytes / sizeof(PageId))
      group.pages.reset(static_cast<PageId*>(std::calloc(entries, sizeof(PageId))));
    if (group.pages == nullptr) return static_cast<std::int64_t>(entries * sizeof(PageId));
    group.rows.resize(rows);
    storage_.push_back(std::move(group));
  }
  return 0;
}

PageId* BlockTable::entry_at(SlotId slot, GroupId group, std::int64_t entry) const {
  const Group& storage = storage_[group.value];
  return storage.pages.get() + slot.value * storage.entries + entry;
}

void BlockTable::open(SlotId slot, SequenceId sequence) {
  QUIRE_CHECK(slot != kPaddingSlot && slot.value < slots_.size() && !is_open(slot), "slot {} for sequence {}",
              slot.value, sequence.value);
  slots_[slot.value] = Slot{true, sequence, -1};
}

void BlockTable::reset(SlotId slot) {
  QUIRE_CHECK(is_open(slot), "slot {}", slot.value);
  for (Group& group : storage_) group.rows[slot.value] = Row{};
  slots_[slot.value] = Slot{};
}

void BlockTable::append(SlotId slot, GroupId group, PageId page) {
  Row& row = row_of(slot, group);
  QUIRE_CHECK(is_open(slot) && page != kPaddingPage && row.end < capacity(group), "slot {} entry {} page {}",
              slot.value, row.end, page.value);
  *entry_at(slot, group, row.end) = page;
  updates_.push_back(TableUpdate{group, slot, static_cast<std::uint32_t>(row.end), page});
  ++row.end;
}

void BlockTable::skip(SlotId slot, GroupId group, std::int64_t entries) {
  Row& row = row_of(slot, group);
  QUIRE_CHECK(is_open(slot) && row.end == 0 && entries <= capacity(group),
              "slot {} skips {} entries behind {}", slot.value, entries, row.end);
  std::fill_n(entry_at(slot, group, 0), entries, kPaddingPage);
  row = Row{entries, entries};
}

PageId BlockTable::clear(SlotId slot, GroupId group, std::int64_t entry) {
  PageId* at = entry_at(slot, group, entry);
  const PageId page = *at;
  *at = kPaddingPage;
  updates_.push_back(TableUpdate{group, slot, static_cast<std::uint32_t>(entry), kPaddingPage});
  return page;
}

std::span<const PageId> BlockTable::row(SlotId slot, GroupId group) const {
  return {entry_at(slot, group, 0), static_cast<std::size_t>(row_of(slot, group).end)};
}

Allocated BlockTable::allocated(SlotId slot, GroupId group) const {
  return Allocated{static_cast<std::int32_t>(row_of(slot, group).end * rule(group).page_tokens)};
}

PageId BlockTable::last(SlotId slot, GroupId group) const {
  const Row& row = row_of(slot, group);
  return row.end > row.begin ? *entry_at(slot, group, row.end - 1) : kPaddingPage;
}

void BlockTable::take_updates(std::vector<TableUpdate>& target) {
  target.insert(target.end(), updates_.begin(), updates_.end());
  updates_.clear();
}

}  // namespace quire::kv
