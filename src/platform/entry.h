// What every platform folder gives to platform.cc: how many devices it has, how to open one, and its line
// for `--version`. A build without a platform links a stub of the same names (no_cuda/).
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "platform/platform.h"

namespace quire::platform::cpu {
std::string line();
Result<std::unique_ptr<Device>> open(const ThreadPlan& threads);
}  // namespace quire::platform::cpu

namespace quire::platform::cuda {
std::string line();
int device_count();
// `ordinal` is not negative. An absent one is a Result.
Result<std::unique_ptr<Device>> open(int ordinal);
}  // namespace quire::platform::cuda
