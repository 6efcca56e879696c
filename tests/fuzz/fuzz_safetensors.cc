// parse_safetensors: what it accepts lies inside the file and fits its shape.
#include <cstdint>
#include <cstdlib>

#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto tensors = quire::checkpoint::parse_safetensors(file, "fuzz");
  if (!tensors.ok()) return 0;
  for (const auto& tensor : *tensors) {
    if (tensor.data < file.data() || tensor.bytes < 0 || tensor.data + tensor.bytes > file.data() + size)
      std::abort();
  }
  return 0;
}
