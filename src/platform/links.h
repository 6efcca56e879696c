// The way between a device's own memory and the host's, measured: large copies to and from page-locked
// memory.
#pragma once

#include "base/result.h"
#include "platform/platform.h"

namespace quire::platform {

struct LinkSpeeds {
  double to_device_bytes_s = 0.0;  // both 0 where device and host share their memory
  double to_host_bytes_s = 0.0;
};
Result<LinkSpeeds> measure_links(Device& device);

}  // namespace quire::platform
