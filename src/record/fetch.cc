#include "record/fetch.h"

namespace quire::record {

// As few copies as the strides allow.
void Fetch::rows(std::vector<std::uint8_t>& to, const void* from, std::int64_t rows, std::int64_t row_stride,
                 std::int64_t heads, std::int64_t head_stride, std::int64_t width) {
  to.resize(static_cast<std::size_t>(rows * heads * width));
  const auto* source = static_cast<const std::uint8_t*>(from);
  const bool dense_heads = head_stride == width || heads == 1;
  if (dense_heads && (row_stride == heads * width || rows == 1)) {
    if (!to.empty()) stream_.copy(to.data(), source, rows * heads * width);
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    std::uint8_t* row = to.data() + r * heads * width;
    if (dense_heads) {
      stream_.copy(row, source + r * row_stride, heads * width);
      continue;
    }
    for (std::int64_t h = 0; h < heads; ++h)
      stream_.copy(row + h * width, source + r * row_stride + h * head_stride, width);
  }
}

}  // namespace quire::record
