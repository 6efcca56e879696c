// The gated activations of ops.h, one pair at a time.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/ops.h"

namespace quire::ops::cuda {

// By the division that is right but for the last bits: the full one is most of an activation's instructions.
__device__ __forceinline__ float quick_sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

__device__ __forceinline__ float activate(Activation kind, float limit, float gate, float up) {
  switch (kind) {
    case Activation::silu:
      return gate * quick_sigmoid(gate) * up;
    case Activation::gelu_tanh: {
      // 0.5 g (1 + tanh(u)) = g quick_sigmoid(2u).
      const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
      return gate * quick_sigmoid(inner + inner) * up;
    }
    case Activation::swiglu_clamp: {
      const float g = gate > limit ? limit : gate;
      const float u = up > limit ? limit : up < -limit ? -limit : up;
      return (u + 1.0f) * (g * quick_sigmoid(1.702f * g));
    }
  }
  return 0.0f;
}

}  // namespace quire::ops::cuda
