// StampedDevice: what the device would hold, without computing. A written key is a stamp, a hash of its
// position, its namespace and every token up to it: two keys are interchangeable exactly when their stamps
// are equal. It follows a plan as the device does (its own copy of the tables, updates in order), so a page
// that is shared, copied, recycled or named wrongly shows as a stamp that is not the reader's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/block_table.h"
#include "kv/page_pool.h"
#include "scheduler/step_plan.h"

namespace quire::simulate {

// Stamps of the keys [0, n) of one sequence.
using Stamps = std::span<const std::uint64_t>;

class StampedDevice {
 public:
  // The pool and the table are the scheduler's; only their sizes are read.
  StampedDevice(const kv::PagePool& pool, const kv::BlockTable& table);

  // The plan's copies, then the tables as it changes them, before its rows.
  void begin_step(const scheduler::StepPlan& plan);
  // Reads what the row sees before its own keys, then writes these. Every key is read where the row opens its
  // slot or `all` is set, else the ends and one in between. Violations are appended as sentences.
  void run_row(const scheduler::PlanRow& row, Stamps stamps, bool all, std::vector<std::string>& violations);

 private:
  struct Group {
    kv::GroupRule rule;
    std::vector<std::vector<std::uint32_t>> table;  // [slots + 1], each as long as its entries were set
    // [pages, page_tokens], 0: never written. In blocks, made when a key of theirs is touched: memory goes
    // with what the trace uses, not with the capacity.
    std::vector<std::unique_ptr<std::uint64_t[]>> blocks;

    std::uint64_t& key(std::int64_t index);
  };
  std::uint64_t* key_at(Group& group, const scheduler::PlanRow& row, std::int64_t key,
                        std::vector<std::string>& violations);
  void read(Group& group, const scheduler::PlanRow& row, std::int64_t key, Stamps stamps,
            std::vector<std::string>& violations);

  std::vector<Group> groups_;
  std::vector<std::string> names_;
};

}  // namespace quire::simulate
