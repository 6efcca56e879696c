#define QUIRE_LEVEL avx2
#include "ops/cpu/row_math_impl.h"
