// Activations: the buffers between the operations of a step, laid out once in one region of device memory.
// The same planning code runs twice: over nothing, to learn the size, and over the real memory. Nothing is
// allocated after that, and addresses never change.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace quire::model {

// The element type of every activation; on the CPU the engine computes in float32.
inline constexpr DType kActivation = DType::f32;

class Region {
 public:
  // base null: only measures; the views it hands out must not be used.
  explicit Region(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}

  // 64-byte aligned.
  void* take(std::int64_t bytes) {
    const std::uintptr_t address = base_ + static_cast<std::uintptr_t>(used_);
    used_ += (bytes + 63) / 64 * 64;
    return reinterpret_cast<void*>(address);
  }
  template <class T>
  T* take_array(std::int64_t count) {
    return static_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  }
  // Empty (data null) when cols is 0: the model has no such activation.
  TensorView matrix(std::int64_t rows, std::int64_t cols) {
    if (cols == 0) return {};
    return TensorView::matrix(take(rows * cols * static_cast<std::int64_t>(dtype_bytes(kActivation))),
                              kActivation, rows, cols);
  }
  std::int64_t used() const { return used_; }

 private:
  std::uintptr_t base_ = 0;
  std::int64_t used_ = 0;
};

}  // namespace quire::model
