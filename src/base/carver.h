// Carver: one allocation cut into aligned arrays. The same function that binds the pointers, run over a null
// base, says how many bytes they need: plan and allocation cannot disagree.
#pragma once

#include <cstdint>

namespace quire {

// kAlign in bytes, of every array from the base on: 64 is a cache line, 256 what a GPU wants.
template <std::int64_t kAlign = 64>
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t at = used_;
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  std::int64_t used() const { return used_; }

 private:
  char* base_;
  std::int64_t used_ = 0;
};

}  // namespace quire
