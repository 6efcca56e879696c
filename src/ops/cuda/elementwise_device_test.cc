// Norms, activations, angles and copies against the CPU's, for both activation types and odd shapes.
#include "ops/cuda/testing.h"

namespace quire::ops::cuda {
namespace {

using testing::expect_close;
using testing::Host;
using testing::poisoned;
using testing::random_floats;
using testing::random_rows;
using testing::Rig;

constexpr DType kTypes[] = {DType::f32, DType::bf16};

// CPU and device run the same call on views of the same values; the device's types are `x_type` and so on.
TEST(RmsNormDevice, AgreesWithTheCpu) {
  Rig rig;
  unsigned seed = 1;
  for (DType x_type : kTypes) {
    for (DType y_type : kTypes) {
      for (std::int64_t n : {8, 100, 576, 4096, 7168, 20000}) {
        for (bool with_add : {false, true}) {
          const std::int64_t rows = n > 4096 ? 3 : 13, stride = n + (n % 8 == 0 ? 16 : 3);
          Host x = random_rows(rows, n, stride, x_type, seed++);
          Host add = random_rows(rows, n, n, DType::bf16, seed++);
          Host y = poisoned(rows, n, stride);
          const std::vector<float> weight = random_floats(n, seed++);
          const TensorView dx = rig.mirror(x, x_type), dadd = rig.mirror(add, DType::bf16),
                           dy = rig.mirror(y, y_type);
          rig.ops->rms_norm({dx, with_add ? dadd : TensorView{}, rig.upload(weight), 1e-5f, dy}, *rig.stream);
          rig.host_ops->rms_norm({x.view, with_add ? add.view : TensorView{}, weight.data(), 1e-5f, y.view},
                                 *rig.host_stream);
          rig.finish();
          // The sum of a bf16 residual is rounded before the norm: one more rounding than the CPU has.
          const float units = with_add && x_type == DType::bf16 ? 2.1f : 1.1f;
          const DType worse = x_type == DType::bf16 && with_add ? DType::bf16 : y_type;
          expect_close(rig.read(dx, x.values.size()), x.values, x_type, 1.1f, 0.0f, "x");
          expect_close(rig.read(dy, y.values.size()), y.values, worse, units, 1e-5f, "y");
        }
      }
    }
  }
}

TEST(RmsNormDevice, OnlyAddsWithoutAnOutputAndNormsHeads) {
  Rig rig;
  Host x = random_rows(5, 6 * 32, 6 * 32 + 8, DType::f32, 3),
       add = random_rows(5, 6 * 32, 6 * 32, DType::f32, 4);
  const TensorView dx = rig.mirror(x, DType::f32), dadd = rig.mirror(add, DType::f32);
  const std::vector<float> weight = random_floats(32, 5);
  rig.ops->rms_norm({dx, dadd, nullptr, 1e-5f, {}}, *rig.stream);
  rig.ops->rms_norm({dx.split_heads(6), {}, rig.upload(weight), 1e-5f, dx.split_heads(6)}, *rig.stream);
  rig.host_ops->rms_norm({x.view, add.view, nullptr, 1e-5f, {}}, *rig.host_stream);
  rig.host_ops->rms_norm({x.view.split_heads(6), {}, weight.data(), 1e-5f, x.view.split_heads(6)},
                         *rig.host_stream);
  rig.finish();
  expect_close(rig.read(dx, x.values.size()), x.values, DType::f32, 8.0f, 1e-6f, "heads");
}

TEST(ActivationDevice, AgreesWithTheCpu) {
  Rig rig;
  unsigned seed = 1;
  for (DType type : kTypes) {
    for (Activation kind : {Activation::silu, Activation::gelu_tanh, Activation::swiglu_clamp}) {
      for (std::int64_t n : {7, 64, 2880, 14336}) {
        Host gate = random_rows(9, n, n + 8, type, seed++, 4.0f),
             up = random_rows(9, n, n, type, seed++, 4.0f);
        const TensorView dgate = rig.mirror(gate, type), dup = rig.mirror(up, type);
        rig.ops->gated_activation({kind, 7.0f, dgate, dup, dgate}, *rig.stream);
        rig.host_ops->gated_activation({kind, 7.0f, gate.view, up.view, gate.view}, *rig.host_stream);
        rig.finish();
        expect_close(rig.read(dgate, gate.values.size()), gate.values, type,
                     type == DType::f32 ? 16.0f : 0.6f, 1e-5f, "gate");
      }
    }
  }
}

TEST(SoftcapDevice, AgreesWithTheCpu) {
  Rig rig;
  for (float cap : {0.0f, 30.0f}) {
    Host x = random_rows(5, 1003, 1010, DType::f32, 8, 40.0f);
    const TensorView dx = rig.mirror(x, DType::f32);
    rig.ops->softcap_scale({dx, 0.5f, cap}, *rig.stream);
    rig.host_ops->softcap_scale({x.view, 0.5f, cap}, *rig.host_stream);
    rig.finish();
    expect_close(rig.read(dx, x.values.size()), x.values, DType::f32, 8.0f, 1e-5f, "x");
  }
}

TEST(RopeAnglesDevice, AgreeWithTheCpu) {
  Rig rig;
  const std::int32_t rotary = 128, rows = 50;
  std::vector<std::int32_t> positions;
  for (int r = 0; r < rows; ++r) positions.push_back(r * r * 37);
  std::vector<float> inv_freq;
  for (int i = 0; i < rotary / 2; ++i)
    inv_freq.push_back(std::pow(500000.0f, -2.0f * static_cast<float>(i) / rotary));
  std::vector<float> want(static_cast<std::size_t>(rows * rotary));
  float* got = rig.upload(std::vector<float>(want.size(), NAN));
  rig.ops->rope_angles({rig.upload(positions), rig.upload(inv_freq), 1.25f, rotary, rows, got}, *rig.stream);
  rig.host_ops->rope_angles({positions.data(), inv_freq.data(), 1.25f, rotary, rows, want.data()},
                            *rig.host_stream);
  rig.finish();
  expect_close(rig.download(got, want.size()), want, DType::f32, 1.0f, 2e-6f, "cos sin");
}

TEST(CopyDevice, GathersCopiesAndConverts) {
  Rig rig;
  for (DType from : kTypes) {
    for (DType to : kTypes) {
      for (std::int64_t n : {3, 64, 2047}) {
        Host x = random_rows(20, n, n + 8, from, 11), y = poisoned(6, n, n + 5), z = poisoned(20, n, n);
        const std::vector<std::int32_t> index = {19, 0, 7, 7, 3, 11};
        const TensorView dx = rig.mirror(x, from), dy = rig.mirror(y, to), dz = rig.mirror(z, to);
        rig.ops->gather_rows({dx, rig.upload(index), dy}, *rig.stream);
        rig.ops->copy({dx, dz}, *rig.stream);
        rig.host_ops->gather_rows({x.view, index.data(), y.view}, *rig.host_stream);
        rig.host_ops->copy({x.view, z.view}, *rig.host_stream);
        rig.finish();
        expect_close(rig.read(dy, y.values.size()), y.values, to, 0.51f, 0.0f, "gathered");
        expect_close(rig.read(dz, z.values.size()), z.values, to, 0.51f, 0.0f, "copied");
      }
    }
  }
}

TEST(CopyDevice, RepeatsOneRowForAllHeads) {
  Rig rig;
  Host x = random_rows(4, 16, 24, DType::bf16, 2), y = poisoned(4, 3 * 40, 3 * 40);
  const TensorView dx = rig.mirror(x, DType::bf16), dy = rig.mirror(y, DType::bf16);
  const auto run = [](Ops& ops, platform::Stream& stream, TensorView from, TensorView to) {
    TensorView heads = to.split_heads(3);
    heads.shape[2] = 16;
    ops.copy({TensorView{from.data, from.dtype, 3, {4, 3, 16, 1}, {from.stride[0], 0, 1, 0}}, heads}, stream);
  };
  run(*rig.ops, *rig.stream, dx, dy);
  run(*rig.host_ops, *rig.host_stream, x.view, y.view);
  rig.finish();
  expect_close(rig.read(dy, y.values.size()), y.values, DType::bf16, 0.0f, 0.0f, "heads");
}

TEST(EmbedDevice, TakesEveryFormatOfTheTable) {
  Rig rig;
  const std::vector<std::int32_t> tokens = {0, 49, 3, 3, 17};
  for (WeightFormat format : {WeightFormat::bf16, WeightFormat::f16, WeightFormat::f32}) {
    const cpu::testing::TestWeight table = cpu::testing::random_weight(format, 50, 96, 6);
    WeightView device_table = table.view;
    device_table.data = rig.upload(table.bytes);
    Host y = poisoned(5, 96, 104);
    const TensorView dy = rig.mirror(y, DType::f32);
    rig.ops->embed({device_table, rig.upload(tokens), 1.5f, dy}, *rig.stream);
    rig.host_ops->embed({table.view, tokens.data(), 1.5f, y.view}, *rig.host_stream);
    rig.finish();
    expect_close(rig.read(dy, y.values.size()), y.values, DType::f32, 0.0f, 0.0f, "embedded");
  }
}

}  // namespace
}  // namespace quire::ops::cuda
