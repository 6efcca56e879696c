// The tensors that a model of a spec needs, found in a checkpoint and checked: every one there, no other,
// the shapes of the config, types that this build can use. Of values only scales are read.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "model/names.h"
#include "model/spec.h"
#include "ops/ops.h"

namespace quire::model {

struct FoundTensor {
  ExpectedWeight expected;
  const checkpoint::TensorInfo* tensor = nullptr;  // null: dummy weights
};

// Keyed by weight_key().
using FoundTensors = std::unordered_map<std::uint64_t, FoundTensor>;
std::uint64_t weight_key(WeightId id, std::int32_t layer, std::int32_t expert, bool scale = false);

// The line of the table of products, or null.
const ops::LinearFormat* find_linear_format(const ops::Ops& ops, WeightFormat format);

// A message names what is missing, unknown, misshapen or of a type that cannot be used: how many, and the
// first few.
Result<FoundTensors> check_tensors(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                                   const ops::Ops& ops, const LoadOptions& options);

// Reads the scales of quantised weights: refused are those that are negative, NaN or infinite, and a matrix
// that has none but 0, which would be gone. A row may have 0: some are pruned.
Status check_scales(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                    const FoundTensors& found);

}  // namespace quire::model
