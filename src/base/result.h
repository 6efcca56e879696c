// Result<T> (the public header) and the two macros that pass an error on.
#pragma once

#include "quire/result.h"

// QUIRE_TRY(name, expression): declares `name` as the value or returns the error from this function.
#define QUIRE_TRY(name, ...)                             \
  auto name##_result = (__VA_ARGS__);                    \
  if (!name##_result.ok()) return name##_result.error(); \
  auto& name = *name##_result

// QUIRE_TRY_STATUS(expression): returns the error of a Status from this function.
#define QUIRE_TRY_STATUS(...)                                                \
  do {                                                                       \
    if (auto status_ = (__VA_ARGS__); !status_.ok()) return status_.error(); \
  } while (false)
