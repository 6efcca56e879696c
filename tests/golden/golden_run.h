// Goldens through the public engine: running the cases of a golden file and holding the answers to its gates.
// Shared by the tests of the host's backends and of a device's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "golden_file.h"
#include "quire/engine.h"

namespace quire::golden {

inline constexpr const char* kFamilies[] = {"llama", "llama3_rope", "llama_mqa", "mistral_swa", "qwen2",
                                            "qwen3", "gemma3",      "gpt_oss",   "deepseek_v3"};
bool is_moe(const std::string& model);

struct Answers {
  std::vector<std::vector<Scored>> scored;        // per case
  std::vector<std::vector<std::int32_t>> greedy;  // per case
};

std::unique_ptr<Engine> open_or_fail(const std::string& path, const Options& options);

// All cases at once: scoring requests and, if wanted, greedy answers run as one continuous batch of different
// lengths.
Answers compute(Engine& engine, const Golden& golden, bool greedy);

void expect_float32(const Golden& golden, const Answers& answers, const std::string& what);

// The gates of 16-bit, fp8 and 8-bit-activation paths, as multiples of the stored bf16 run's errors.
struct Gate {
  double mean_times, mean_plus, quantile_times, quantile_plus, largest_times, largest_plus;
};
inline constexpr Gate kBf16{1.5, 1e-3, 1.5, 2e-3, 3, 1e-2};
inline constexpr Gate kFp8{6, 2e-2, 6, 4e-2, 0, 0};
inline constexpr Gate kInt8Activations{3, 1e-2, 0, 0, 0, 0};

void expect_gate(const Golden& golden, const Answers& answers, const Gate& gate, bool moe,
                 const std::string& what);

}  // namespace quire::golden
