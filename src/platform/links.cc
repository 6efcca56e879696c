#include "platform/links.h"

#include "base/clock.h"

namespace quire::platform {
namespace {

constexpr std::int64_t kBytes = 256 << 20;  // of one copy
constexpr int kCopies = 4;

double rate(Stream& stream, void* target, const void* source) {
  stream.copy(target, source, kBytes);  // the first one sets up what later ones find
  stream.synchronize();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kCopies; ++i) stream.copy(target, source, kBytes);
  stream.synchronize();
  return static_cast<double>(kCopies) * static_cast<double>(kBytes) / seconds_since(begin);
}

}  // namespace

Result<LinkSpeeds> measure_links(Device& device) {
  if (device.info().host_memory) return LinkSpeeds{};
  QUIRE_TRY(pinned, device.allocate_pinned(kBytes, "link bench"));
  QUIRE_TRY(memory, device.allocate(kBytes, "link bench"));
  const std::unique_ptr<Stream> stream = device.make_stream();
  LinkSpeeds speeds;
  speeds.to_device_bytes_s = rate(*stream, memory->data(), pinned->data());
  speeds.to_host_bytes_s = rate(*stream, pinned->data(), memory->data());
  return speeds;
}

}  // namespace quire::platform
