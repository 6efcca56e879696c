// How much a row's bits may depend on the rest of the step. Attention rows and ops declare a level; the
// engine's is the minimum. schedule_invariant: a row's bits depend on its own tokens only (decode, extend
// and verify alike, any chunking, page size, split, thread count, batch mates, cold or warm cache).
#pragma once

#include <cstdint>

namespace quire {

enum class Determinism : std::uint8_t { none, run_to_run, batch_invariant, schedule_invariant };

}  // namespace quire
