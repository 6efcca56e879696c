// The ceilings of one device, measured again and again in turns with the cells (bench.h).
#pragma once

#include <memory>
#include <vector>

#include "attention/bench/bench.h"
#include "attention/bench/loops.h"

namespace quire::attention::bench {

double median(std::vector<double> values);  // 0 for none
double now_seconds();

class CeilingMeter {
 public:
  static Result<std::unique_ptr<CeilingMeter>> make(platform::Device& device, platform::Stream& stream,
                                                    const Options& options);
  // One measurement each; the values of the round are appended to the series.
  double read();
  double copy();
  double matmul();
  void launches();
  Ceilings summary() const;  // medians of the series
  std::int64_t rotation_bytes() const { return bytes_; }

 private:
  CeilingMeter(platform::Device& device, platform::Stream& stream, const Options& options);

  platform::Device& device_;
  platform::Stream& stream_;
  const Options options_;
  const Loops& loops_;
  std::int64_t cache_bytes_ = 0;
  std::int64_t bytes_ = 0;  // of the buffer that is read
  std::unique_ptr<platform::Arena> arena_;
  std::unique_ptr<platform::Buffer> panels_;
  std::vector<double> read_, copy_, matmul_, launch_, node_;
};

}  // namespace quire::attention::bench
