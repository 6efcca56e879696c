// Hugging Face folders with quantised weights, made from a 16-bit one, for tests. Not part of the program.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace quire::model::testing {

struct StoredTensor {
  std::string type;  // as safetensors spells it
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

struct Fp8Folder {
  bool per_row = true;               // a scale for every output, as [outputs, 1]; else one for the matrix
  std::string scale_type = "BF16";   // or "F16", "F32"
  bool scalar = false;               // one scale as a scalar, not as a list of one
  std::vector<std::string> ignored;  // layers that stay as they are; the head is among them by default
  bool keep_head = true;
  // Called before the files are written: what a test damages.
  std::function<void(StoredTensors& tensors, std::string& config)> edit;
};

// The text of a quantization_config with these layers left out.
std::string quantization_config(bool per_row, const std::vector<std::string>& ignored);

// Writes two folders below `to`: "fp8", every linear layer of the model at `from` in e4m3 as published, and
// "wide", the same model in f32 with the weights that the other stands for.
void write_fp8_folders(const std::string& from, const std::string& to, const Fp8Folder& kind);

}  // namespace quire::model::testing
