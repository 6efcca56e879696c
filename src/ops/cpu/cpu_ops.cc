#include "ops/cpu/cpu_ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/parts.h"

namespace quire::ops::cpu {

std::string ops_name(platform::cpu::Isa isa) {
  return fmt::format("cpu ({})", platform::cpu::to_string(isa));
}

CpuOps::CpuOps(platform::cpu::Isa isa) : name_(ops_name(isa)), products_(isa), math_(row_math(isa)) {}

std::int64_t CpuOps::workspace_bytes(const OpsLimits& limits) const {
  // linear: the targets of one call may want every rounded kind once; together they are under 8 bytes an
  // element.
  const std::int64_t linear = align64(limits.max_rows * std::max(limits.max_cols, limits.max_hidden) * 8);
  const std::int64_t scratch =
      std::max({linear, moe_workspace_bytes(limits), sample_workspace_bytes(limits)});
  return Workspace::fixed_bytes(limits) + scratch;
}

void CpuOps::set_workspace(void* data, std::int64_t bytes, const OpsLimits& limits) {
  QUIRE_CHECK(bytes >= workspace_bytes(limits) && reinterpret_cast<std::uintptr_t>(data) % 64 == 0,
              "workspace of {} bytes at {}, {} needed", bytes, data, workspace_bytes(limits));
  std::memset(data, 0, static_cast<std::size_t>(Workspace::counts_bytes(limits)));
  workspace_ = Workspace(data, bytes, limits);
}

std::unique_ptr<Ops> make_cpu_ops() { return make_cpu_ops(platform::cpu::isa()); }

std::unique_ptr<Ops> make_cpu_ops(platform::cpu::Isa isa) {
  QUIRE_CHECK(isa <= platform::cpu::best_isa(), "this processor has no {}", platform::cpu::to_string(isa));
  return std::make_unique<CpuOps>(isa);
}

}  // namespace quire::ops::cpu
