// What a case must give, computed on the Logical data: no pages, no tables, one key after another.
// In double it judges the reference row; in float it is "the same maths done plainly in the working type",
// whose error is the yardstick of the gate.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/conformance/inputs.h"

namespace quire::conformance {

struct Expected {
  std::vector<double> out;  // [rows, q_heads, v_dim], rows of the sequences
  std::vector<double> lse;  // [rows, q_heads]
  double score_max = 0;     // largest |score|, before a softcap
  double value_max = 0;     // largest |V|
};

Expected plain_double(const Logical& l);
Expected plain_float(const Logical& l);
// In float with weights and results rounded to the type of q, as matrix units take them.
Expected plain_rounded(const Logical& l);

}  // namespace quire::conformance
