// config.json: bounded JSON, then the spec, its tables and its list of tensors.
#include <cstdint>
#include <string_view>

#include "checkpoint/json.h"
#include "model/names.h"
#include "model/rope.h"
#include "model/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto document =
      quire::checkpoint::JsonDocument::parse({reinterpret_cast<const char*>(data), size}, "config.json");
  if (!document.ok()) return 0;
  const auto spec = quire::model::read_config_spec(document->root());
  if (!spec.ok()) return 0;
  (void)quire::model::to_string(*spec);
  (void)quire::model::expected_weights(*spec);
  for (const auto& rope : spec->ropes) (void)quire::model::rope_inv_freq(rope);
  return 0;
}
