// Replay: the recorded attention calls once more, on another row of the table or on the oracle, and where the
// results first differ: step, layer, row, head, and the keys whose reading makes the difference.
//
// Two sides are compared. A side is a row of the table, run now on the recorded inputs, or "recorded": what
// the row that ran in the engine gave then. The oracle is the row `reference` in double precision.
//
// The keys are found by running the differing call again with parts (part_begin, part_end): the shortest
// beginning of the keys whose results differ ends with the first bad key, the shortest end begins with the
// last one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "record/file_reader.h"
#include "record/number_set.h"
#include "record/replay/runner.h"

namespace quire::record {

struct ReplayOptions {
  std::string backend;  // a row, or "recorded" (also when empty)
  std::string against;  // likewise; empty: the reference, or for the reference what was recorded
  NumberSet layers = NumberSet::all();
  NumberSet steps = NumberSet::all();
  std::string fault;  // planted in `backend` (attention/conformance/faults.h): the difference must be found
  std::vector<TableRow> table = all_rows();
};

struct Difference {
  std::uint64_t step = 0;
  std::string call;
  std::string row_name;  // of the table: who gave the differing result
  std::int32_t layer = 0;
  std::int32_t row = 0;  // token row of the step
  std::uint32_t sequence = 0;
  std::int32_t position = 0;  // key index of the row's own key
  std::int32_t head = 0;
  std::int32_t dim = 0;  // of the largest error
  double error = 0;
  double gate = 0;
  double got = 0;
  double expected = 0;
  bool of_lse = false;
  // Keys [key_begin, key_end): reading them makes the difference. Absent: see `keys_note`.
  std::optional<std::int32_t> key_begin, key_end;
  std::string keys_note;
};

struct ReplayReport {
  std::int64_t steps = 0;      // in the record
  std::int64_t calls = 0;      // in the record
  std::int64_t compared = 0;   // of these
  std::int64_t skipped = 0;    // that a side cannot run
  std::int64_t differing = 0;  // calls
  double worst_ratio = 0;      // error over gate, of the rows that do not differ
  std::string backend, against;
  std::optional<Difference> first;
};

// bad_input: a damaged record, an unknown row or fault, sides that cannot differ, nothing to compare.
Result<ReplayReport> replay(FileReader& reader, const ReplayOptions& options);

}  // namespace quire::record
