// golden.safetensors: what a reference implementation computed for a tiny checkpoint, and the gates of
// tests/data/golden/README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "quire/engine.h"

namespace quire::golden {

struct Case {
  std::vector<std::int32_t> tokens;  // [n]
  std::vector<float> logprobs;       // [n - 1]
  std::vector<std::int32_t> argmax;  // [n]
  std::vector<float> margin;         // [n]
  std::vector<std::int32_t> greedy;
  std::vector<float> greedy_margin;
  std::vector<float> bf16_logprobs;  // [n - 1] of the stored bf16 run
};

struct Golden {
  std::vector<Case> cases;
  float logit_std = 1.0f;
};

// Aborts the test program when the file is not there or not right.
Golden load_golden(const std::string& path);

// Errors of a 16-bit or quantised path over all tokens of all cases, as the gates see them.
struct Errors {
  double mean = 0, quantile90 = 0, largest = 0;
};
Errors errors_of(std::vector<double> absolute);

}  // namespace quire::golden
