#include "attention/other_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace quire::attention {

namespace {

constexpr std::array kOtherNames = {
    OtherNames{"flash_attn, fa2, fa3, fa4, hpc_ops",
               "`cuda` on NVIDIA GPUs (`mma.sync`; no kernels with wgmma or tcgen05 yet), `cpu` on the CPU"},
    OtherNames{"flashinfer, triton, triton_attn, flex_attention, trtllm_mha, xqa, cudnn",
               "`cuda` on NVIDIA GPUs, `cpu` on the CPU: kernels of our own, none of a library"},
    OtherNames{"flash_attn_diffkv", "`cuda` on NVIDIA GPUs (head dims 192/128), `cpu` on the CPU"},
    OtherNames{"tree_attn",
               "every row: a tree of drafts is a mask of the contract; no engine option makes one yet"},
    OtherNames{
        "flashmla, flash_attn_mla, flashinfer_mla, triton_mla, cutlass_mla, trtllm_mla, cutedsl_mla, "
        "tokenspeed_mla",
        "`cuda` on NVIDIA GPUs, `cpu` on the CPU: latent attention (576/512) is a shape of theirs, not a "
        "backend"},
    OtherNames{"dsa, nsa, dsv4, compressed, flashmla_sparse, flashinfer_mla_sparse, triton_mla_sparse, "
               "rocm_aiter_mla_sparse, xpu_mla_sparse, double_sparsity, quest",
               "none yet: only `reference` takes lists of keys, and no model here makes them"},
    OtherNames{"dual_chunk_flash_attn", "none yet: no model here has dual chunk attention"},
    OtherNames{"gdn_attn, mamba1, mamba2, short_conv, linear, hybrid_linear_attn, hybrid_lightning_attn",
               "none yet: there are no rows for linear attention or state space models"},
    OtherNames{"turboquant", "none: KV is f32, bf16, f16 or fp8_e4m3 (`--kv-dtype`)"},
    OtherNames{"torch_native, torch_sdpa, cpu_attn",
               "`cpu` on the CPU; `reference` on any device, to check others"},
    OtherNames{"intel_amx", "`cpu`, with AVX-512 or AVX2; no AMX kernels yet"},
    OtherNames{"aiter, wave, rocm_attn, rocm_aiter_fa, rocm_aiter_unified_attn, rocm_aiter_mla, "
               "rocm_aiter_triton_mla",
               "none: AMD GPUs are not served yet; `cpu` runs on the host"},
    OtherNames{"intel_xpu, xpu", "none: Intel GPUs are not served yet; `cpu` runs on the host"},
    OtherNames{"ascend", "none: Ascend NPUs are not served yet; `cpu` runs on the host, if that is x86-64"},
    OtherNames{"mlx, metal", "none: Apple GPUs are not served yet"},
    OtherNames{"pallas", "none: TPUs are not served yet; `cpu` runs on the host"},
};

bool has(std::string_view names, std::string_view name) {
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find(", ", at), names.size());
    if (names.substr(at, end - at) == name) return true;
    at = end + 2;
  }
  return false;
}

}  // namespace

std::span<const OtherNames> other_names() { return kOtherNames; }

std::string name_elsewhere(std::string_view name) {
  std::string small(name);
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char letter) {
    return letter == '-' ? '_' : static_cast<char>(std::tolower(letter));
  });
  for (const OtherNames& line : kOtherNames)
    if (has(line.names, small)) return fmt::format("; what {} is elsewhere: {}", name, line.here);
  return "";
}

}  // namespace quire::attention
