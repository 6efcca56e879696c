// What each part of CpuOps needs of the workspace.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace quire::ops::cpu {

std::int64_t moe_workspace_bytes(const OpsLimits& limits);
std::int64_t sample_workspace_bytes(const OpsLimits& limits);

}  // namespace quire::ops::cpu
