// Fetch: device memory as host vectors. Copies are queued on the stream and are there after wait(); the
// vectors must not move before it.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/contract.h"
#include "platform/platform.h"

namespace quire::record {

class Fetch {
 public:
  explicit Fetch(platform::Stream& stream) : stream_(stream) {}

  template <class T>
  void array(std::vector<T>& to, const T* from, std::int64_t count) {
    to.resize(from == nullptr ? 0 : static_cast<std::size_t>(count));
    if (!to.empty()) stream_.copy(to.data(), from, count * static_cast<std::int64_t>(sizeof(T)));
  }
  // [rows, heads, width bytes] dense, from rows and heads that lie further apart (strides in bytes).
  void rows(std::vector<std::uint8_t>& to, const void* from, std::int64_t rows, std::int64_t row_stride,
            std::int64_t heads, std::int64_t head_stride, std::int64_t width);
  void wait() { stream_.synchronize(); }

 private:
  platform::Stream& stream_;
};

}  // namespace quire::record
