#include "attention/bench/loops.h"

namespace quire::attention::bench {
namespace {

typedef float V __attribute__((vector_size(16), may_alias));
typedef std::uint64_t W __attribute__((vector_size(16), may_alias));
constexpr int kRows = 6;

#include "attention/bench/loops.inl"

}  // namespace

const Loops& loops_portable() {
  static constexpr Loops kLoops = kTable;
  return kLoops;
}

}  // namespace quire::attention::bench
