// The file descriptors of this process: connections are some of them.
#pragma once

#include <cstdint>

namespace quire::server {

// 0 where /proc cannot be read.
std::int64_t open_descriptors();
// What the process may have open: its soft limit.
std::int64_t descriptor_limit();
// The same after the soft limit was raised towards `wanted`, as far as the hard one allows.
std::int64_t raise_descriptor_limit(std::int64_t wanted);

}  // namespace quire::server
