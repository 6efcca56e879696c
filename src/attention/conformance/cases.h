// Which cases a row is judged on: a pairwise covering array over the axes of each of its boxes (every pair
// of values of two axes that can occur together occurs in some case), boundary lengths among the values.
// A case is a small value; inputs.h makes its data from it. Everything follows from the seed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/caps.h"

namespace quire::conformance {

// Key lengths, relative to the page size P where that matters.
enum class Lengths : std::uint8_t {
  one,
  page_less_one,
  page,
  page_plus_one,
  n61,
  n125,
  n1000,
  long_one,
  ragged,
  padded_rows,
  none,
};
// How the sequences' pages lie in the arena.
enum class Pages : std::uint8_t {
  in_order,
  permuted,
  shared,
  far,  // far: page ids past 65536 and, where they fit, offsets past 4 GiB
};
enum class Logits : std::uint8_t { plain, large, huge };  // scores of about 4, 45, several hundred

struct Case {
  attention::Problem problem;
  Lengths lengths = Lengths::n61;
  Pages pages = Pages::permuted;
  Logits logits = Logits::plain;
  bool loose = false;     // strides wider than the rows, q rows that belong to no sequence, q_descale not 1
  int longest_query = 1;  // of a verify row without a tree
  std::uint64_t seed = 0;
  int box = 0;
  // Index of each axis' value, for counting what a box claims; see Axis.
  std::vector<std::uint8_t> values;
};
std::string name_of(const Case& c);

// One axis of a box: its name and its values in words.
struct Axis {
  std::string name;
  std::vector<std::string> values;
};

struct Sweep {
  std::vector<Axis> axes;
  std::vector<Case> cases;  // the covering array, in an order drawn by the seed
  int pairs_covered = 0;
  int pairs_impossible = 0;  // values that exclude each other, such as dense and shared pages
};

// The covering array of box `box` of the row, then `extra` random cases.
Sweep make_sweep(const attention::Backend& row, int box, std::uint64_t seed, int extra);

}  // namespace quire::conformance
