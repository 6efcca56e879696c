#include "server/metrics/process_facts.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "server/http/descriptors.h"

namespace quire::server {
namespace {

// The fields of /proc/self/stat behind the program's name, which may hold spaces: [0] is field 3, the state.
std::vector<std::string> stat_fields() {
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream rest(text.substr(end + 1));
  return {std::istream_iterator<std::string>(rest), {}};
}

double boot_time() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("btime ", 0) == 0) return std::stod(line.substr(6));
  return 0.0;
}

}  // namespace

ProcessFacts process_facts() {
  ProcessFacts facts;
  const std::vector<std::string> fields = stat_fields();
  constexpr std::size_t kLast = 21;  // field 24, resident pages
  if (fields.size() > kLast) {
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    facts.cpu_s = (std::stod(fields[11]) + std::stod(fields[12])) / ticks;
    facts.threads = std::stod(fields[17]);
    facts.start_time_s = boot_time() + std::stod(fields[19]) / ticks;
    facts.virtual_bytes = std::stod(fields[20]);
    facts.resident_bytes = std::stod(fields[kLast]) * static_cast<double>(sysconf(_SC_PAGESIZE));
  }
  facts.open_fds = static_cast<double>(open_descriptors());
  facts.max_fds = static_cast<double>(descriptor_limit());
  return facts;
}

}  // namespace quire::server
