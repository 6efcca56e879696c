// The reference row: the contract in double precision, as obvious loops, on any shape. It is the oracle
// that the other rows are judged by, so it shares no arithmetic with them: conversions included.
#pragma once

#include "attention/caps.h"

namespace quire::attention {

Backend reference_backend();

}  // namespace quire::attention
