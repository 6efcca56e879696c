// The ceilings of one device, measured again and again in turns with the cells (bench.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/bench/bench.h"
#include "attention/bench/loops.h"
#include "base/clock.h"
#include "base/quantile.h"

namespace quire::attention::bench {

constexpr std::int64_t kBlock = 1 << 20;  // bytes: buffers that are read and copied are whole blocks

class CeilingMeter {
 public:
  virtual ~CeilingMeter() = default;
  // The meter of the device's platform.
  static Result<std::unique_ptr<CeilingMeter>> make(platform::Device& device, platform::Stream& stream,
                                                    const Options& options);
  // One measurement each; the values of the round are appended to the series.
  virtual double read() = 0;
  virtual double copy() = 0;
  // Of the type that attention multiplies in: f32 on a cpu, bf16 on cuda.
  virtual double matmul() = 0;
  virtual void launches() = 0;
  virtual Ceilings summary() const = 0;  // medians of the series
  virtual std::int64_t rotation_bytes() const = 0;
};

Result<std::unique_ptr<CeilingMeter>> make_cpu_meter(platform::Device& device, platform::Stream& stream,
                                                     const Options& options);
Result<std::unique_ptr<CeilingMeter>> make_cuda_meter(platform::Device& device, platform::Stream& stream,
                                                      const Options& options);

// Repeats `pass` until the least time has gone by; what it returns, summed, per second.
template <class F>
double rate(double least_seconds, F pass) {
  double work = 0;
  const double start = steady_now();
  double end = start;
  do {
    work += pass();
    end = steady_now();
  } while (end - start < least_seconds);
  return work / (end - start);
}

}  // namespace quire::attention::bench
