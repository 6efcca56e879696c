#include "record/replay/find_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace quire::record {
namespace {

// Whether suspect and oracle differ when the sequence's keys are cut to [begin, end). The other sequences
// keep theirs for the suspect, whose fault may need the whole batch, and have none for the oracle.
Result<bool> differs(const KeySearch& s, std::int32_t sequence, std::int32_t begin, std::int32_t end) {
  const CallFrame& f = s.frame;
  const auto at = static_cast<std::size_t>(sequence);
  KeyParts mine{f.part_begin, f.part_end};
  if (mine.begin.empty()) {
    mine.begin.assign(f.kv_lens.size(), 0);
    mine.end = f.kv_lens;
  }
  mine.begin[at] = std::max(mine.begin[at], begin);
  mine.end[at] = std::min(mine.end[at], end);
  KeyParts its{std::vector<std::int32_t>(f.kv_lens.size(), 0),
               std::vector<std::int32_t>(f.kv_lens.size(), 0)};
  its.begin[at] = mine.begin[at];
  its.end[at] = mine.end[at];
  QUIRE_TRY(got, s.suspect.run(f, s.cache, &mine));
  QUIRE_TRY(expected, s.oracle.run(f, s.cache, &its));
  const std::size_t base = (static_cast<std::size_t>(s.row) * static_cast<std::size_t>(s.problem.q_heads) +
                            static_cast<std::size_t>(s.head)) *
                           static_cast<std::size_t>(s.problem.v_dim);
  const RowError error = row_error(got.out, expected.out, base, s.problem.v_dim);
  return !(error.error <= s.gates.of(sequence, s.row, s.head, error.largest));
}

}  // namespace

RowError row_error(const std::vector<float>& got, const std::vector<float>& expected, std::size_t begin,
                   std::int32_t dims) {
  RowError worst;
  for (std::int32_t d = 0; d < dims; ++d) {
    const double a = got[begin + static_cast<std::size_t>(d)];
    const double b = expected[begin + static_cast<std::size_t>(d)];
    if (std::isfinite(b)) worst.largest = std::max(worst.largest, std::fabs(b));
    double error = a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::fabs(a - b);
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error <= worst.error && d > 0) continue;
    worst.error = error;
    worst.got = a;
    worst.expected = b;
    worst.dim = d;
  }
  return worst;
}

Result<FoundKeys> find_keys(const KeySearch& search) {
  const std::int32_t sequence = search.gates.sequence_of(search.row);
  const std::int32_t keys = search.frame.kv_lens[static_cast<std::size_t>(sequence)];
  FoundKeys found;
  QUIRE_TRY(whole, differs(search, sequence, 0, keys));
  if (!whole) {
    found.note = fmt::format(
        "{} gives the right result for the recorded inputs now: what it read then was not what had been "
        "written, "
        "or its result differs from run to run",
        search.suspect.row().name);
    return found;
  }
  // [0, bad) differs, [0, good) does not.
  std::int32_t good = 0;
  std::int32_t bad = keys;
  while (bad - good > 1) {
    const std::int32_t middle = good + (bad - good) / 2;
    QUIRE_TRY(here, differs(search, sequence, 0, middle));
    (here ? bad : good) = middle;
  }
  const std::int32_t first = bad - 1;
  // [bad, keys) differs, [good, keys) does not.
  bad = 0;
  good = keys;
  while (good - bad > 1) {
    const std::int32_t middle = bad + (good - bad) / 2;
    QUIRE_TRY(here, differs(search, sequence, middle, keys));
    (here ? bad : good) = middle;
  }
  if (first > bad) {
    found.note = fmt::format(
        "no stretch of keys is wrong by itself: the first {} keys give a wrong result, and so do the last "
        "{}: how "
        "the row splits and merges them is",
        first + 1, keys - bad);
    return found;
  }
  found.begin = first;
  found.end = bad + 1;
  return found;
}

}  // namespace quire::record
