// find_keys: which keys make a row's result wrong, by running its call with shorter and shorter parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "record/replay/gates.h"
#include "record/replay/runner.h"

namespace quire::record {

// The largest error of one row and head.
struct RowError {
  double error = 0;    // infinite where one is NaN and the other is not
  double largest = 0;  // of the expected values
  double got = 0;
  double expected = 0;
  std::int32_t dim = 0;
};
RowError row_error(const std::vector<float>& got, const std::vector<float>& expected, std::size_t begin,
                   std::int32_t dims);

struct KeySearch {
  const CallFrame& frame;
  const attention::Problem& problem;
  const Cache& cache;
  const Gates& gates;
  Runner& suspect;
  Runner& oracle;
  std::int32_t row = 0;  // of the call
  std::int32_t head = 0;
};

struct FoundKeys {
  std::optional<std::int32_t> begin, end;
  std::string note;  // why there is no range, or what is odd about it
};

// REQUIRES that both rows run the call with parts.
Result<FoundKeys> find_keys(const KeySearch& search);

}  // namespace quire::record
