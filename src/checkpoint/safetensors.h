// The safetensors reader: 8 bytes of header length, a JSON header, raw little-endian tensors.
// parse_safetensors checks everything before anything is used: header length within the file and the cap,
// bounded JSON, no key twice, UTF-8 names, shape x element size equal to the span without overflow, spans
// inside the file, in order without overlaps or holes, and ending at the file's end.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/tensor_info.h"

namespace quire::checkpoint {

inline constexpr std::size_t kMaxSafetensorsHeader = std::size_t{100} << 20;  // the format's own cap

// The tensors of `file`, in file order, pointing into it. `name` is what messages call the file.
Result<std::vector<TensorInfo>> parse_safetensors(std::span<const std::byte> file, std::string_view name);

}  // namespace quire::checkpoint
