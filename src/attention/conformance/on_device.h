// A row on a device with memory of its own, seen from the host: inputs are copied there, results back, so
// that the judge and the planted faults work on host memory whatever the platform. Writes outside out, lse or
// the plan buffer come back as broken guards.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/conformance/inputs.h"
#include "attention/contract.h"

namespace quire::conformance {

// Device memory that the cases of a run use in turn. Grows as they need.
class DeviceMemory {
 public:
  explicit DeviceMemory(platform::Device& device) : device_(device) {}
  // The arena's place; its contents stay what they were.
  char* arena(std::int64_t bytes) { return at_least(arena_, bytes); }
  char* workspace(std::int64_t bytes) { return at_least(workspace_, bytes); }
  // Everything else: taken piece by piece, all given back by reset().
  void reset() { used_ = 0; }
  char* take(std::int64_t bytes);

 private:
  char* at_least(std::unique_ptr<platform::Buffer>& buffer, std::int64_t bytes);

  platform::Device& device_;
  std::unique_ptr<platform::Buffer> arena_;
  std::unique_ptr<platform::Buffer> workspace_;
  std::unique_ptr<platform::Buffer> pieces_;
  std::int64_t used_ = 0;
};

// Takes host shapes and arguments. run() copies in, runs, waits and copies out. For a captured run: upload(),
// then record() while the stream records, and download() after a launch.
class OnDevice final : public attention::Attention {
 public:
  OnDevice(std::unique_ptr<attention::Attention> inner, const attention::Problem& problem,
           const Placed& placed, DeviceMemory& memory)
      : inner_(std::move(inner)), problem_(problem), placed_(placed), memory_(memory) {}

  std::int64_t workspace_bytes(const attention::Limits& limits) const override {
    return inner_->workspace_bytes(limits);
  }
  // What the inner row gets as its plan buffer, `fill` in every byte. Before plan() or upload().
  void make_workspace(std::int64_t bytes, std::uint8_t fill, platform::Stream& stream);

  // `buffer` is the caller's stand-in: its byte after the end is spoiled when the real one was overrun.
  void plan(const attention::StepShape& shape, attention::PlanBuffer buffer,
            platform::Stream& stream) override;
  void run(const attention::StepShape& shape, const attention::Args& args, attention::PlanBuffer buffer,
           platform::Stream& stream) override;

  void upload(const attention::StepShape& shape, const attention::Args& args, platform::Stream& stream);
  void record(platform::Stream& stream);
  void download(attention::PlanBuffer buffer, platform::Stream& stream);

 private:
  void upload_shape(const attention::StepShape& shape, platform::Stream& stream);
  void upload_args(const attention::Args& args, platform::Stream& stream);
  template <class T>
  const T* copy_in(const T* host, std::int64_t count, platform::Stream& stream);
  const float* scales_in(const float* host, std::int64_t count, platform::Stream& stream);

  std::unique_ptr<attention::Attention> inner_;
  const attention::Problem problem_;
  const Placed& placed_;
  DeviceMemory& memory_;
  char* arena_ = nullptr;
  attention::PlanBuffer workspace_;  // on the device, guards around it
  attention::StepShape shape_;       // device pointers
  attention::Args args_;
  attention::Args host_args_;
  std::int64_t out_bytes_ = 0;
  std::int64_t lse_bytes_ = 0;
};

}  // namespace quire::conformance
