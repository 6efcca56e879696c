// Ledger: every byte has an owner before the first allocation. open() plans all lines, checks the sum against
// what the machine has, then allocates exactly those. An out-of-memory message is this list.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quire/engine.h"

namespace quire::engine {

class Ledger {
 public:
  // Lines of zero bytes are left out. REQUIRES bytes >= 0 and an owner not yet listed.
  void add(std::string owner, std::int64_t bytes);
  void add_mapped(std::string owner, std::int64_t bytes);
  // Host memory of a run whose device has its own: listed, and not part of what the device must hold.
  void add_host(std::string owner, std::int64_t bytes);
  // Zero when there is no such line.
  std::int64_t bytes_of(std::string_view owner) const;
  std::int64_t private_bytes() const;  // what the device must hold: everything but file pages and host memory
  std::int64_t total_bytes() const;
  const std::vector<LedgerLine>& lines() const { return lines_; }
  // no_resources, with all lines, when the private bytes are over `available`.
  Status check(std::int64_t available) const;

 private:
  std::vector<LedgerLine> lines_;
};

// One line per owner, largest first, and the sum.
std::string to_string(std::span<const LedgerLine> lines);

// "1.5 GiB", "12 MiB", "640 bytes".
std::string bytes_to_string(std::int64_t bytes);

}  // namespace quire::engine
