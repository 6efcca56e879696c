#define QUIRE_LEVEL sse42
#include "ops/cpu/row_math_impl.h"
