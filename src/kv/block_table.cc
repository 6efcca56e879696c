#include "kv/block_table.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace quire::kv {

void BlockTable::Free::operator()(PageId* pages) const { std::free(pages); }

BlockTable::BlockTable(TableConfig config)
    : config_(std::move(config)), slots_(static_cast<std::size_t>(config_.slots) + 1) {
  QUIRE_CHECK(config_.slots >= 1 && config_.max_tokens >= 1 && config_.groups.size() <= kMaxGroups,
              "slots={} tokens={} groups={}", config_.slots, config_.max_tokens, config_.groups.size());
  const auto rows = static_cast<std::size_t>(config_.slots) + 1;
  for (const GroupRule& rule : config_.groups) {
    Group group;
    group.entries = pages_for(rule, config_.max_tokens);
    // calloc, not a vector: rows are sized for the longest context, and what no sequence reaches must not
    // become resident memory.
    group.pages.reset(
        static_cast<PageId*>(std::calloc(rows * static_cast<std::size_t>(group.entries), sizeof(PageId))));
    QUIRE_CHECK(group.pages != nullptr, "a block table of {} x {} entries", rows, group.entries);
    group.rows.resize(rows);
    storage_.push_back(std::move(group));
  }
  constexpr std::size_t kUpdatesPerStep = 4096;  // room before the list grows
  updates_.reserve(kUpdatesPerStep);
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
