// What of the machine this process may use: all of it, or less if a control group (v1 or v2) says so.
#pragma once

#include <string>

#include "platform/platform.h"

namespace quire::platform::cpu {

// Reads <root>/proc and <root>/sys/fs/cgroup; root is "" but for tests.
MemoryInfo read_memory(const std::string& root);
// Processors' worth of time, rounded up; 0: no quota.
int read_cpu_quota(const std::string& root);

}  // namespace quire::platform::cpu
