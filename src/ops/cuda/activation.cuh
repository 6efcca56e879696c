// The gated activations of ops.h, one pair at a time.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/ops.h"

namespace quire::ops::cuda {

__device__ __forceinline__ float activate(Activation kind, float limit, float gate, float up) {
  switch (kind) {
    case Activation::silu:
      return gate * sigmoid(gate) * up;
    case Activation::gelu_tanh: {
      // 0.5 g (1 + tanh(u)) = g sigmoid(2u).
      const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
      return gate * sigmoid(inner + inner) * up;
    }
    case Activation::swiglu_clamp: {
      const float g = gate > limit ? limit : gate;
      const float u = up > limit ? limit : up < -limit ? -limit : up;
      return (u + 1.0f) * (g * sigmoid(1.702f * g));
    }
  }
  return 0.0f;
}

}  // namespace quire::ops::cuda
