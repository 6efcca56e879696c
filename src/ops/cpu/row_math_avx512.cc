#define QUIRE_LEVEL avx512
#include "ops/cpu/row_math_impl.h"
