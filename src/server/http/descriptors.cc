#include "server/http/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace quire::server {

namespace {

constexpr rlim_t kMost = 1 << 30;        // "unlimited", as a number to count with
constexpr std::int64_t kAssumed = 1024;  // where the system does not say

}  // namespace

std::int64_t open_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (error) return 0;
  return std::distance(begin(open), end(open)) - 1;  // without the one that lists them
}

std::int64_t descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kAssumed;
  return static_cast<std::int64_t>(std::min(limit.rlim_cur, kMost));
}

std::int64_t raise_descriptor_limit(std::int64_t wanted) {
  rlimit limit{};
  if (descriptor_limit() < wanted && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(wanted));
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return descriptor_limit();
}

}  // namespace quire::server
