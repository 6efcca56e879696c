// StepPlan: what one step computes, as host data. Printable and replayable: same requests, same plans.
//
// Rows are ordered decode, verify, extend, so each attention call gets one contiguous range. A row is one
// sequence with a range of its token positions; the flat token rows of the step follow each other in row
// order. Lengths are host upper bounds; the device knows the exact ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "kv/block_table.h"
#include "kv/lengths.h"
#include "kv/miss.h"

namespace quire::scheduler {

enum class RowKind : std::uint8_t { decode, verify, extend };
std::string_view to_string(RowKind kind);

// Where the row's input tokens come from.
enum class Input : std::uint8_t {
  literal,      // tokens [query_begin, query_begin + query_count) of prompt and known output, host data
  last_output,  // the last token sampled for the slot, on the device (one token)
};

struct PlanRow {
  SequenceId sequence;
  SlotId slot;
  RowKind kind = RowKind::extend;
  Input input = Input::literal;
  bool opens_slot = false;       // first row of the sequence in this slot: its device state starts anew
  bool yields_token = false;     // the last logits give the sequence's next token
  std::int32_t first_row = 0;    // index of the first flat token row
  std::int32_t query_begin = 0;  // position (key index) of the first query token
  std::int32_t query_count = 0;
  kv::Visible visible;             // keys after this row: query_begin + query_count
  kv::Allocated allocated;         // the least over the groups
  std::int32_t logits_begin = 0;   // positions [logits_begin, logits_begin + logits_count) need logits: none,
  std::int32_t logits_count = 0;   // the last one, or (scoring) those of the prompt not scored before
  std::int32_t output_index = 0;   // with yields_token: 0 for the first generated token of the sequence
  std::int32_t updates_begin = 0;  // the row's part of StepPlan::updates: new pages, released entries
  std::int32_t updates_count = 0;
};

// The first tokens of a page that a request goes on from, to a page of its own: all layers, K and V,
// sidecars. Before anything else of the step, in order (a later copy may overwrite an earlier one's source).
struct PageCopy {
  GroupId group;
  PageId from;
  PageId to;
  std::int32_t tokens = 0;
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

// A sequence got its slot in this step.
struct Admission {
  SequenceId sequence;
  std::int32_t cached_tokens = 0;  // whose KV was there: the first row begins behind them
  kv::MissReport miss;             // why it was not more
  bool resumed = false;            // it ran before and was retracted
};

struct StepPlan {
  std::uint64_t step = 0;
  std::vector<PlanRow> rows;
  std::int32_t decode_rows = 0;  // rows [0, decode_rows)
  std::int32_t verify_rows = 0;
  std::int32_t extend_rows = 0;
  std::int32_t total_q = 0;   // flat token rows
  std::int32_t decode_q = 0;  // of these, in decode rows
  std::int32_t total_logits = 0;
  std::int32_t max_q = 0;
  kv::Visible max_visible;
  std::vector<Admission> admitted;
  std::vector<PageCopy> copies;
  // Block table changes to upload before the step, in order.
  std::vector<kv::TableUpdate> updates;
  // Sequences that lost their pages to make room; they come back and compute their tokens again.
  std::vector<SequenceId> retracted;
};

std::string to_string(const StepPlan& plan);

}  // namespace quire::scheduler
