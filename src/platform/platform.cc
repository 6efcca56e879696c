#include "platform/platform.h"

#include <fmt/core.h>

#include <optional>

#include "base/text.h"
#include "platform/entry.h"

namespace quire::platform {

std::string_view to_string(Kind kind) { return kind == Kind::cpu ? "cpu" : "cuda"; }

namespace {

constexpr std::string_view kCuda = "cuda";

// The N of "cuda:N", 0 for "cuda"; nothing when the name is not of that form.
std::optional<int> cuda_ordinal(std::string_view name) {
  if (name.substr(0, kCuda.size()) != kCuda) return std::nullopt;
  name.remove_prefix(kCuda.size());
  if (name.empty()) return 0;
  if (name.front() != ':' || name.size() < 2) return std::nullopt;
  int ordinal = -1;
  if (!parse_number(name.substr(1), &ordinal) || ordinal < 0) return std::nullopt;
  return ordinal;
}

// "cpu, cuda:0, cuda:1" or "cpu (cuda: not in this build)".
std::string existing_devices() {
  const int count = cuda::device_count();
  if (count == 0) return fmt::format("cpu ({})", cuda::line());
  std::string names = "cpu";
  for (int i = 0; i < count; ++i) names += fmt::format(", cuda:{}", i);
  return names;
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(std::string_view name, const ThreadPlan& threads) {
  if (name == "cpu") return cpu::open(threads);
  const std::optional<int> ordinal = cuda_ordinal(name);
  const bool is_cuda = name == kCuda || name.starts_with("cuda:");
  if (!is_cuda) return bad_input(fmt::format("unknown device \"{}\": there is {}", name, existing_devices()));
  // Without any GPU the reason for that matters, and not which one was asked for.
  if (cuda::device_count() == 0) return cuda::open(0);
  if (!ordinal || (*ordinal > 0 && *ordinal >= cuda::device_count())) {
    return bad_input(fmt::format("no device \"{}\": there is {}", name, existing_devices()));
  }
  return cuda::open(*ordinal);
}

std::vector<std::string> platform_lines() { return {cpu::line(), cuda::line()}; }

}  // namespace quire::platform
