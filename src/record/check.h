// Whether a decoded frame can be run: sizes agree with each other and with the problem, and every index and
// length lies where it must. Records are untrusted files.
#pragma once

#include "record/frames.h"

namespace quire::record {

Status check(const EngineFrame& frame);
Status check(const StepFrame& frame);
Status check(const CallFrame& frame, const EngineFrame& engine);

// Whether calls of this problem can be recorded: its cache rows are plain rows of one type.
Status recordable(const attention::Problem& problem);

}  // namespace quire::record
