#include "ops/expand.h"

#include "base/check.h"
#include "ops/cpu/products.h"
#include "platform/cpu/isa.h"

namespace quire::ops {
namespace {

const cpu::ProductTable& table() {
  static const cpu::ProductTable products(platform::cpu::isa());
  return products;
}

}  // namespace

bool can_expand(WeightFormat format) { return table().find(format) != nullptr; }

std::vector<WeightFormat> expandable_formats() {
  std::vector<WeightFormat> formats;
  for (const LinearFormat& line : table().formats()) formats.push_back(line.format);
  return formats;
}

void expand(WeightFormat format, const void* x, float* y, std::int64_t count) {
  const cpu::Product* product = table().find(format);
  QUIRE_CHECK(product != nullptr, "format={}", weight_format_info(format).name);
  product->dequantise(x, y, count);
}

}  // namespace quire::ops
