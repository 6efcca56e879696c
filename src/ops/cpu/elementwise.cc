// Norms, activations, rope angles, soft caps: one row at a time.
#include <cmath>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "platform/cpu/stream.h"

namespace quire::ops::cpu {

using platform::cpu::Team;

namespace {

// Element operations that exp, sine and the like count for.
constexpr std::int64_t kExpCost = 8;
constexpr std::int64_t kSineCost = 64;

void run_rms_norm(const RmsNorm& args, const RowMath& math, Team& team) {
  const bool heads = args.x.rank == 3;
  const std::int64_t per_row = heads ? args.x.shape[1] : 1;
  const std::int64_t n = heads ? args.x.shape[2] : args.x.cols();
  const auto at = [heads](const TensorView& view, std::int64_t row, std::int64_t head) {
    return heads ? head_of(view, row, head) : row_of(view, row);
  };
  for_rows(team, args.x.rows(), per_row * n, [&](std::int64_t row, int) {
    for (std::int64_t head = 0; head < per_row; ++head) {
      math.rms_norm(at(args.x, row, head), args.add.data ? at(args.add, row, head) : nullptr, args.weight,
                    args.eps, args.y.data ? at(args.y, row, head) : nullptr, n);
    }
  });
}

void run_gated(const GatedActivation& args, const RowMath& math, Team& team) {
  const std::int64_t n = args.gate.cols();
  for_rows(team, args.gate.rows(), n * kExpCost, [&](std::int64_t row, int) {
    const float* gate = row_of(args.gate, row);
    const float* up = row_of(args.up, row);
    float* y = row_of(args.y, row);
    switch (args.kind) {
      case Activation::silu:
        return math.silu(gate, up, y, n);
      case Activation::gelu_tanh:
        return math.gelu_tanh(gate, up, y, n);
      case Activation::swiglu_clamp:
        return math.swiglu_clamp(gate, up, y, n, args.limit);
    }
  });
}

bool same_shape(const TensorView& a, const TensorView& b) { return a.rank == b.rank && a.shape == b.shape; }

}  // namespace

void CpuOps::rms_norm(const RmsNorm& args, platform::Stream& stream) {
  const auto legal = [](const TensorView& view) { return is_matrix(view) || is_heads(view); };
  QUIRE_CHECK(legal(args.x), "x rank {} dtype {}", args.x.rank, to_string(args.x.dtype));
  QUIRE_CHECK(!args.add.data || (legal(args.add) && same_shape(args.add, args.x)), "add rows {} cols {}",
              args.add.rows(), args.add.cols());
  QUIRE_CHECK(!args.y.data || (legal(args.y) && same_shape(args.y, args.x) && args.weight),
              "y rows {} cols {}", args.y.rows(), args.y.cols());
  const RowMath* math = &math_;
  platform::cpu::as_cpu(stream).enqueue([args, math](Team& team) { run_rms_norm(args, *math, team); });
}

void CpuOps::gated_activation(const GatedActivation& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.gate) && is_matrix(args.up) && is_matrix(args.y) &&
                  same_shape(args.gate, args.up) && same_shape(args.gate, args.y),
              "gate {} x {}, up {} x {}", args.gate.rows(), args.gate.cols(), args.up.rows(), args.up.cols());
  const RowMath* math = &math_;
  platform::cpu::as_cpu(stream).enqueue([args, math](Team& team) { run_gated(args, *math, team); });
}

void CpuOps::rope_angles(const RopeAngles& args, platform::Stream& stream) {
  QUIRE_CHECK(args.rotary_dim > 0 && args.rotary_dim % 2 == 0, "rotary_dim={}", args.rotary_dim);
  platform::cpu::as_cpu(stream).enqueue([args](Team& team) {
    const std::int64_t half = args.rotary_dim / 2;
    for_rows(team, args.rows, half * kSineCost, [&](std::int64_t row, int) {
      const float position = static_cast<float>(args.positions[row]);
      float* out = args.cos_sin + row * args.rotary_dim;
      for (std::int64_t i = 0; i < half; ++i) {
        const float angle = position * args.inv_freq[i];
        out[i] = std::cos(angle) * args.attention_factor;
        out[half + i] = std::sin(angle) * args.attention_factor;
      }
    });
  });
}

void CpuOps::softcap_scale(const SoftcapScale& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.x), "x rank {} dtype {}", args.x.rank, to_string(args.x.dtype));
  const RowMath* math = &math_;
  platform::cpu::as_cpu(stream).enqueue([args, math](Team& team) {
    for_rows(team, args.x.rows(), args.x.cols() * (args.cap == 0.0f ? 1 : kExpCost),
             [&](std::int64_t row, int) {
               math->softcap(row_of(args.x, row), args.x.cols(), args.scale, args.cap);
             });
  });
}

}  // namespace quire::ops::cpu
