// Activations: the buffers between the operations of a step, laid out once in one region of device memory.
// The same planning code runs twice: over nothing, to learn the size, and over the real memory. Nothing is
// allocated after that, and addresses never change.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace quire::model {

// Element types. What feeds a matrix product or attention, and what comes out of them, is of the compute type
// (ModelLimits::compute: f32 on the CPU, bf16 on a GPU): normed, branch, q, k, v, attended, gate, up, hidden.
// The stream that layers add to, router logits and logits are float32 everywhere: a sum over all layers in 16
// bits would lose what a layer adds, a rounded router picks other experts, and both are small beside the
// rest. So of an operation's views x, add and y may differ in type: embed writes f32, rms_norm reads f32,
// adds bf16 and writes bf16 (or is bf16 throughout), linear writes bf16, or f32 for the router and the
// logits.
inline constexpr DType kResidual = DType::f32;
inline constexpr DType kLogits = DType::f32;  // of the router too

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
  TensorView matrix(DType type, std::int64_t rows, std::int64_t cols) {
    if (cols == 0) return {};
    return TensorView::matrix(take(rows * cols * static_cast<std::int64_t>(dtype_bytes(type))), type, rows,
                              cols);
  }
  std::int64_t used() const { return used_; }

 private:
  std::uintptr_t base_ = 0;
  std::int64_t used_ = 0;
};

}  // namespace quire::model
