// The strided copy.
#include <cstring>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "platform/cpu/stream.h"

namespace quire::ops::cpu {

void CpuOps::copy(const Copy& args, platform::Stream& stream) {
  const auto legal = [](const TensorView& view) { return is_matrix(view) || is_heads(view); };
  QUIRE_CHECK(legal(args.x) && legal(args.y) && args.x.rank == args.y.rank && args.x.shape == args.y.shape,
              "x rank {} {} x {}, y rank {} {} x {}", args.x.rank, args.x.rows(), args.x.cols(), args.y.rank,
              args.y.rows(), args.y.cols());
  platform::cpu::as_cpu(stream).enqueue([args](platform::cpu::Team& team) {
    const bool heads = args.x.rank == 3;
    const std::int64_t per_row = heads ? args.x.shape[1] : 1;
    const std::int64_t n = args.x.shape[heads ? 2 : 1];
    for_rows(team, args.x.rows(), per_row * n, [&](std::int64_t row, int) {
      for (std::int64_t head = 0; head < per_row; ++head) {
        std::memcpy(row_of(args.y, row) + head * (heads ? args.y.stride[1] : 0),
                    row_of(args.x, row) + head * (heads ? args.x.stride[1] : 0), n * sizeof(float));
      }
    });
  });
}

}  // namespace quire::ops::cpu
