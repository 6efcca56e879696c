// BlockTable: per slot (running sequence) and group a row of page ids. Entry i covers tokens [i P, (i+1) P).
// Entries are appended while a sequence grows and never re-pointed; entries whose pages a window or chunk has
// left behind hold 0. Fixed capacity, made once: nothing allocates afterwards.
//
// The device copy follows by deltas: take_updates() lists what changed, in order; the lists are immutable
// once taken. Entries past a row's end are stale there and are never read.
// The table owns no references: who appends holds the page (kv/page_pool.h), who releases gives it back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kv/group.h"

namespace quire::kv {

struct TableUpdate {
  GroupId group;
  SlotId slot;
  std::uint32_t entry = 0;
  PageId page;  // 0: released
  friend bool operator==(const TableUpdate&, const TableUpdate&) = default;
};

struct TableConfig {
  std::int32_t slots = 0;       // usable ones are 1 .. slots; slot 0 is padding: its rows stay empty
  std::int32_t max_tokens = 0;  // of one sequence
  std::vector<GroupRule> groups;
};

class BlockTable {
 public:
  // REQUIRES a legal config and memory for it.
  explicit BlockTable(TableConfig config);
  // Refuses, with the numbers, what there is no memory for.
  static Result<BlockTable> create(TableConfig config);

  int groups() const { return static_cast<int>(config_.groups.size()); }
  std::int32_t slots() const { return config_.slots; }
  const GroupRule& rule(GroupId group) const { return config_.groups[group.value]; }
  // Entries per row: the stride of the device copy.
  std::int64_t capacity(GroupId group) const { return storage_[group.value].entries; }

  // Gives the slot to a sequence. REQUIRES a slot that nobody has.
  void open(SlotId slot, SequenceId sequence);
  // Empties the slot after give(GroupId, PageId) for every live page, in order. No update is listed: entries
  // past a row's end are not read.
  template <class Give>
  void close(SlotId slot, Give give) {
    for (std::size_t g = 0; g < storage_.size(); ++g) {
      const GroupId group{static_cast<std::uint32_t>(g)};
      Row& row = row_of(slot, group);
      for (; row.begin < row.end; ++row.begin) give(group, *entry_at(slot, group, row.begin));
    }
    reset(slot);
  }
  bool is_open(SlotId slot) const { return slots_[slot.value].open; }
  SequenceId sequence(SlotId slot) const { return slots_[slot.value].sequence; }

  void append(SlotId slot, GroupId group, PageId page);
  // An empty row begins with `entries` released ones: keys that a window does not see any more.
  void skip(SlotId slot, GroupId group, std::int64_t entries);
  // Tokens below it are not written again: pages that end there may be shared (audit.h checks it). Before the
  // first call only the last page counts as writable.
  void set_written(SlotId slot, std::int32_t tokens) { slots_[slot.value].written = tokens; }
  std::int32_t written(SlotId slot) const { return slots_[slot.value].written; }
  // Zeroes the live entries below `entry` and calls give(PageId) for each page, in order.
  template <class Give>
  void release_below(SlotId slot, GroupId group, std::int64_t entry, Give give) {
    for (Row& row = row_of(slot, group); row.begin < entry && row.begin < row.end; ++row.begin) {
      give(clear(slot, group, row.begin));
    }
  }

  // All entries up to the end, released ones (0) included.
  std::span<const PageId> row(SlotId slot, GroupId group) const;
  std::int64_t live_begin(SlotId slot, GroupId group) const { return row_of(slot, group).begin; }
  std::int64_t live_pages(SlotId slot, GroupId group) const {
    return row_of(slot, group).end - row_of(slot, group).begin;
  }
  Allocated allocated(SlotId slot, GroupId group) const;
  // The row's last page, to ask the pool for the one behind it; kPaddingPage when there is none.
  PageId last(SlotId slot, GroupId group) const;

  std::size_t pending_updates() const { return updates_.size(); }
  // Moves the changes since the last call to the end of `target`.
  void take_updates(std::vector<TableUpdate>& target);

 private:
  struct Free {
    void operator()(PageId* pages) const;
  };
  struct Row {
    std::int64_t begin = 0;  // first live entry
    std::int64_t end = 0;
  };
  struct Group {
    std::int64_t entries = 0;
    std::unique_ptr<PageId[], Free> pages;  // [slots + 1, entries]
    std::vector<Row> rows;                  // [slots + 1]
  };
  struct Slot {
    bool open = false;
    SequenceId sequence;
    std::int32_t written = -1;
  };
  Row& row_of(SlotId slot, GroupId group) { return storage_[group.value].rows[slot.value]; }
  const Row& row_of(SlotId slot, GroupId group) const { return storage_[group.value].rows[slot.value]; }
  struct Unfilled {};
  BlockTable(TableConfig config, Unfilled);
  // Makes the rows of every group; else returns the bytes of the one that cannot be had.
  std::int64_t fill();
  void reset(SlotId slot);
  PageId clear(SlotId slot, GroupId group, std::int64_t entry);
  PageId* entry_at(SlotId slot, GroupId group, std::int64_t entry) const;

  TableConfig config_;
  std::vector<Group> storage_;
  std::vector<Slot> slots_;
  std::vector<TableUpdate> updates_;
};

}  // namespace quire::kv
