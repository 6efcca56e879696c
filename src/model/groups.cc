// KV groups and attention calls: what follows from the spec alone.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/mla_extend.h"
#include "model/model.h"

namespace quire::model {
namespace {

using attention::Call;
using attention::Phase;
using attention::Problem;

// The part of a call's problem that all calls of a model share.
Problem common_problem(const ModelSpec& spec, const platform::DeviceInfo& device, DType compute) {
  Problem problem;
  problem.platform = device.kind;
  problem.arch = device.arch;
  problem.q_heads = spec.q_heads;
  problem.kv_heads = spec.kv_heads;
  problem.qk_dim = spec.qk_dim;
  problem.v_dim = spec.v_dim;
  problem.q_type = compute;
  if (spec.attention_softcap > 0) problem.features |= attention::kSoftcap;
  if (spec.sinks) problem.features |= attention::kSink;
  if (spec.latent) {
    problem.kv_heads = 1;
    problem.qk_dim = spec.latent->kv_lora_rank + spec.latent->rope_dim;
    problem.v_dim = spec.latent->kv_lora_rank;
    problem.features |= attention::kLatent;
  }
  return problem;
}

// Dense attention over keys and values of the compute type, whose parts are merged by lse.
Call dense_call(const ModelSpec& spec, const platform::DeviceInfo& device, DType compute, std::string name,
                attention::MaskKind mask) {
  Problem problem = common_problem(spec, device, compute);
  problem.phase = Phase::extend;
  problem.kv_heads = spec.q_heads;
  problem.qk_dim = spec.qk_dim;
  problem.v_dim = spec.v_dim;
  problem.features = (problem.features & ~attention::kLatent) | attention::kLse;
  problem.source = attention::KvSource::dense;
  problem.mask = mask;
  problem.kv.k_type = compute;
  problem.kv.v_type = compute;
  return Call{std::move(name), 0, static_cast<int>(spec.layers.size()), problem};
}

}  // namespace

std::vector<KvGroup> kv_groups(const ModelSpec& spec) {
  std::vector<KvGroup> groups;
  for (const GroupSpec& group : spec.groups) {
    KvGroup out;
    out.name = group.name;
    out.mask = group.mask;
    out.mask_width = group.window;
    out.layers = group.layers;
    out.shapes.assign(group.layers.size(), kv_layer_shape(spec));
    groups.push_back(std::move(out));
  }
  return groups;
}

std::vector<Call> attention_calls(const ModelSpec& spec, const platform::DeviceInfo& device, DType compute,
                                  std::span<const KvFormat> group_formats, Determinism level) {
  QUIRE_CHECK(group_formats.size() == spec.groups.size(), "formats={} groups={}", group_formats.size(),
              spec.groups.size());
  std::vector<Call> calls;
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    const GroupSpec& group = spec.groups[g];
    Problem problem = common_problem(spec, device, compute);
    problem.kv = group_formats[g];
    problem.mask = group.mask;
    const int layers = static_cast<int>(group.layers.size());
    problem.phase = Phase::decode;
    calls.push_back(Call{fmt::format("{}.decode", group.name), static_cast<int>(g), layers, problem});
    if (uses_dense_extend(spec, level)) {
      calls.push_back(dense_call(spec, device, compute, "mla.own", attention::MaskKind::causal));
      calls.push_back(dense_call(spec, device, compute, "mla.prefix", attention::MaskKind::full));
      continue;
    }
    problem.phase = Phase::extend;
    calls.push_back(Call{fmt::format("{}.extend", group.name), static_cast<int>(g), layers, problem});
  }
  return calls;
}

ops::OpsLimits ops_limits(const ModelSpec& spec, const ModelLimits& limits, std::int32_t logit_rows,
                          std::int32_t threads) {
  ops::OpsLimits out;
  out.max_rows = std::max(limits.max_total_q, logit_rows);
  if (spec.latent) out.max_rows = std::max<std::int64_t>(out.max_rows, kPrefixChunkTokens);
  out.max_cols = std::max({spec.hidden, spec.intermediate, spec.q_heads * spec.v_dim});
  if (spec.latent)
    out.max_cols = std::max(
        {out.max_cols, std::int64_t{spec.latent->q_lora_rank}, std::int64_t{spec.latent->kv_lora_rank}});
  if (spec.moe) {
    out.max_cols = std::max(
        {out.max_cols, std::int64_t{spec.moe->intermediate}, std::int64_t{spec.moe->shared_intermediate}});
    out.max_expert_inter = spec.moe->intermediate;
    out.max_top_k = spec.moe->top_k;
  }
  out.max_hidden = spec.hidden;
  out.max_logit_rows = logit_rows;
  out.vocab = spec.vocab;
  out.threads = threads;
  return out;
}

}  // namespace quire::model
