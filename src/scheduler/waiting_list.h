// WaitingList: who waits, and who is next by the policy. Kept in order of arrival; what a policy looks at
// lies beside each other, so that choosing one of ten thousand is one pass over a few hundred kilobytes at
// most.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace quire::scheduler {

enum class Policy : std::uint8_t {
  fcfs,            // first come, first served
  longest_prefix,  // most tokens in the cache first; who waits long goes before
  priority,        // by level, where waiting counts too
};
inline constexpr std::array<std::string_view, 3> kPolicyNames = {"fcfs", "longest_prefix", "priority"};

struct Waiting {
  std::uint32_t record = 0;
  std::uint64_t arrival = 0;
  std::int64_t rank = 0;      // Policy::priority: fixed when it came
  std::uint64_t since = 0;    // the plan before which it came
  std::int32_t cached = 0;    // Policy::longest_prefix: tokens in the cache when last looked
  std::uint64_t skipped = 0;  // the plan that passed it over, plus 1
};

class WaitingList {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  WaitingList(Policy policy, std::int32_t patience) : policy_(policy), patience_(patience) {}

  void reserve(std::size_t count) { list_.reserve(count); }
  std::size_t size() const { return list_.size(); }
  bool empty() const { return list_.empty(); }
  Waiting& operator[](std::size_t index) { return list_[index]; }
  const Waiting& operator[](std::size_t index) const { return list_[index]; }

  void add(const Waiting& waiting);
  void remove_at(std::size_t index);
  void remove(std::uint32_t record);
  // The next one that plan `plan` has not passed over; kNone: nobody.
  std::size_t next(std::uint64_t plan) const;

 private:
  bool before(const Waiting& a, const Waiting& b, std::uint64_t plan) const;

  Policy policy_;
  std::int32_t patience_;  // plans
  std::vector<Waiting> list_;
};

}  // namespace quire::scheduler
