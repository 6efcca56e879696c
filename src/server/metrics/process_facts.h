// What the system says of this process, under the usual names of Prometheus' client libraries.
#pragma once

namespace quire::server {

struct ProcessFacts {
  double resident_bytes = 0.0;
  double virtual_bytes = 0.0;
  double open_fds = 0.0;
  double max_fds = 0.0;
  double threads = 0.0;
  double cpu_s = 0.0;
  double start_time_s = 0.0;  // unix time
};

// From /proc/self; what cannot be read is 0.
ProcessFacts process_facts();

}  // namespace quire::server
