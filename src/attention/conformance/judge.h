// Runs a row on placed inputs and compares. One Judge per row of a verify run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/conformance/faults.h"
#include "attention/conformance/inputs.h"
#include "attention/conformance/on_device.h"
#include "attention/conformance/oracle.h"

namespace quire::conformance {

// A measured error against its gate; ratio() > 1 fails.
struct Error {
  double error = 0;
  double gate = 1;
  std::string_view what = "max";
  double ratio() const { return gate > 0 ? error / gate : (error > 0 ? 1e30 : 0); }
};

// What one check found. `broken` says what is wrong when it is not a matter of size.
struct Finding {
  std::string broken;
  Error worst;
  bool ok() const { return broken.empty() && worst.ratio() <= 1; }
  void join(const Finding& other);
};

// One way to run a row, and where the oracle runs.
struct Place {
  std::unique_ptr<platform::Device> device;
  std::unique_ptr<platform::Stream> stream;
  int threads = 1;
};
struct Machine {
  std::vector<Place> places;             // cpu: 2, 1 and 3 threads; else the one device
  Place oracle;                          // a cpu
  std::unique_ptr<DeviceMemory> memory;  // for a device with memory of its own, else null
};
Result<Machine> open_machine(std::string_view device);

class Judge {
 public:
  Judge(const attention::Backend& row, const Fault* fault, Machine& machine)
      : row_(row), fault_(fault), machine_(machine) {}

  // no_resources where this process cannot have the address ranges that the checks below lay the case out in:
  // a case of far pages takes up to 48 GiB, several at a time. The others REQUIRE it.
  Status check_room(const Logical& l) const;
  // The result against the oracle, stray writes, workspace, NaN.
  Finding accuracy(const Logical& l);
  // Bits, as far as the row's determinism level claims: again, alone, other pages, other thread counts,
  // other chunks, decode against extend against verify; and replay of a recorded graph.
  Finding invariance(const Logical& l);
  // The keys cut into parts, run one by one and merged, against the single pass.
  Finding merged_parts(const Logical& l);

  bool can_merge(const attention::Problem& problem) const;

 private:
  enum class How { eager, captured };
  // Empty, or what is broken.
  std::string run(Placed& placed, int place, How how);
  void merge(const attention::MergeArgs& args);
  void replay(Placed& placed, attention::Attention& row, OnDevice* on_device, attention::PlanBuffer buffer,
              platform::Stream& stream);
  Placement placement_of(const Case& c) const;
  Finding same_rows(const Logical& whole, Placed& base, Logical part, int index, int first,
                    std::string_view what);
  Finding schedule(const Logical& l, Placed& base);
  Finding other_pages(const Logical& l, Placed& base);
  Finding split_rows(const Logical& l, Placed& base, int index);

  const attention::Backend& row_;
  const Fault* fault_;
  Machine& machine_;
};

}  // namespace quire::conformance
