// TensorInfo: one tensor of a file, located and checked, not interpreted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/weight.h"

namespace quire::checkpoint {

inline constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
inline constexpr std::size_t kMaxTensorName = 1024;
inline constexpr std::size_t kMaxRank = 8;

struct TensorInfo {
  std::string name;
  std::string type;                    // as the file spells it: "BF16", "Q4_1", "I64", "type 31"
  std::optional<WeightFormat> format;  // empty: a type that no Quire weight has
  std::vector<std::int64_t> shape;     // outermost first in both file kinds; scalars: empty
  const std::byte* data = nullptr;     // into the mapped file; no alignment is promised
  std::int64_t bytes = 0;
};

}  // namespace quire::checkpoint
