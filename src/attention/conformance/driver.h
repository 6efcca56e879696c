// verify: judges the rows of a table on this machine. The command prints what comes back here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/caps.h"

namespace quire::conformance {

struct VerifyOptions {
  std::string device = "cpu";  // the table is this platform's
  std::string backend;         // one row only; empty: all
  std::uint64_t seed = 1;
  int seconds = 0;  // for all rows together; 0: covering arrays and kExtraCases per box. The covering
                    // arrays always run whole; seconds bounds the random cases that follow them.
  int share = 1, shares = 1;  // the cases may be spread over several processes: this one's share, 1..shares.
                              // Claims are counted over all cases, so only where shares is 1.
  std::string fault;          // plants one (faults.h); a row is given up after a few failures then
};

inline constexpr int kExtraCases = 80;

struct Worst {
  std::string name;  // the case, and what was measured
  double error = 0;
  double gate = 1;
};

struct RowReport {
  std::string name;
  int cases = 0;  // = passed + failed + skipped
  int passed = 0;
  int failed = 0;
  int skipped = 0;  // boxes of other machines, cases that cannot show the planted fault
  Worst worst;      // of the passed and failed, by error over gate
  double seconds = 0;
  std::vector<std::string> failures;  // the first kMostFailures, in words
};

struct VerifyReport {
  std::vector<RowReport> rows;
  std::uint64_t seed = 0;
  bool passed = false;  // no failure, and at least one case passed in every row
};

inline constexpr int kMostFailures = 20;

// bad_input for an unknown row or fault (the message lists those there are), for a fault that no row asked
// for can show, for a share that is none, has no case of a row,
// or is to show a fault. no_resources where a case does not fit in the address space (Judge::check_room): a
// row is not passed by what was left out.
Result<VerifyReport> verify(std::span<const attention::Backend> table, const VerifyOptions& options);

}  // namespace quire::conformance
