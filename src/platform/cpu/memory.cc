#include "platform/cpu/memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace quire::platform::cpu {
namespace {

std::optional<std::int64_t> parse(std::string_view text) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop == text.data()) return std::nullopt;
  return value;
}

// The number that a file holds alone; nothing for "max" or no such file.
std::optional<std::int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return parse(word);
}

// The number after `key` in a file of lines "key number".
std::optional<std::int64_t> read_keyed(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string name, value, rest;
  while (file >> name >> value) {
    std::getline(file, rest);
    if (name == key) return parse(value);
  }
  return std::nullopt;
}

// The path of this process in the hierarchy whose controller list is `controllers` ("" for version 2).
std::string own_group(const std::string& root, std::string_view controllers) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controllers) return line.substr(second + 1);
  }
  return "/";
}

struct GroupFiles {
  const char* base;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // key in memory.stat: page cache that gives way
};

// A group's limit holds for all below it, so every level up to the root counts. Inside a container the
// path may name a place outside the mount: then its files are missing and the mount's root answers.
template <class Visit>
void for_each_level(const std::string& base, std::string path, Visit&& visit) {
  while (true) {
    visit(base + (path == "/" ? "" : path));
    if (path.empty() || path == "/") return;
    path = path.substr(0, path.rfind('/'));
    if (path.empty()) path = "/";
  }
}

void apply_groups(const std::string& root, const std::string& path, const GroupFiles& files,
                  MemoryInfo& info) {
  for_each_level(root + files.base, path, [&](const std::string& folder) {
    const auto limit = read_number(folder + "/" + files.limit);
    if (!limit) return;
    const std::int64_t usage = read_number(folder + "/" + files.usage).value_or(0);
    const std::int64_t cache = read_keyed(folder + "/memory.stat", files.reclaimable).value_or(0);
    info.total_bytes = std::min(info.total_bytes, *limit);
    info.available_bytes = std::min(info.available_bytes, std::max<std::int64_t>(0, *limit - usage + cache));
  });
}

void apply_quota(std::optional<std::int64_t> quota, std::optional<std::int64_t> period, int& least) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;  // "max" in version 2, -1 in version 1
  const auto whole = static_cast<int>(std::min<std::int64_t>(1 << 20, (*quota + *period - 1) / *period));
  least = least == 0 ? whole : std::min(least, whole);
}

}  // namespace

MemoryInfo read_memory(const std::string& root) {
  MemoryInfo info;
  info.total_bytes = read_keyed(root + "/proc/meminfo", "MemTotal:").value_or(0) * 1024;
  info.available_bytes = read_keyed(root + "/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  apply_groups(root, own_group(root, ""), {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
               info);
  apply_groups(
      root, own_group(root, "memory"),
      {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
      info);
  return info;
}

int read_cpu_quota(const std::string& root) {
  int least = 0;
  for_each_level(root + "/sys/fs/cgroup", own_group(root, ""), [&](const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");
    std::string quota, period;
    if (file >> quota >> period) apply_quota(parse(quota), parse(period), least);
  });
  for (const char* controllers : {"cpu,cpuacct", "cpu"}) {
    for_each_level(root + "/sys/fs/cgroup/" + controllers, own_group(root, controllers),
                   [&](const std::string& folder) {
                     apply_quota(read_number(folder + "/cpu.cfs_quota_us"),
                                 read_number(folder + "/cpu.cfs_period_us"), least);
                   });
  }
  return least;
}

}  // namespace quire::platform::cpu
