// Gates: how far two results of one row and head may lie apart. Either not at all (the same row on the same
// kind of machine, from determinism level run_to_run on), or by what rounding can do in the working type:
//
//   |a - b| <= 2^-22 (4 + S + sqrt(n)) vmax + 2 u vmax + u |out|
//
// n keys whose values are at most vmax; S bounds a score's products by |scale q| max |k| (Cauchy-Schwarz), so
// S 2^-24 bounds what rounding does to a score; u is the unit roundoff of the query type where that is not
// float32 (weights and results are rounded to it). Two rows against each other have twice the gate.
#pragma once

#include <cstdint>
#include <vector>

#include "record/frames.h"
#include "record/replay/cache.h"

namespace quire::record {

class Gates {
 public:
  // The keys of the frame's sequences, as the cache holds them. cache: null for dense calls.
  Gates(const CallFrame& frame, const RecordedCall& call, const LayerCache* cache);

  // REQUIRES a row of a sequence. largest: of the expected result's values.
  double of(std::int32_t sequence, std::int32_t row, std::int32_t head, double largest) const;
  // The sequence that a row of q belongs to; -1: none.
  std::int32_t sequence_of(std::int32_t row) const;

 private:
  struct Keys {  // of one sequence and KV head
    double longest_k = 0;
    double largest_v = 0;
  };
  void measure(std::int32_t sequence, const LayerCache* cache);

  const CallFrame& frame_;
  const attention::Problem& problem_;
  std::vector<Keys> keys_;  // [batch, kv_heads]
};

}  // namespace quire::record
