#include "simulate/device.h"

#include <fmt/format.h>

#include <algorithm>

#include "simulate/trace.h"

namespace quire::simulate {
namespace {

constexpr std::int64_t kBlockKeys = 4096;

}  // namespace

std::uint64_t& StampedDevice::Group::key(std::int64_t index) {
  std::unique_ptr<std::uint64_t[]>& block = blocks[static_cast<std::size_t>(index / kBlockKeys)];
  if (block == nullptr) block = std::make_unique<std::uint64_t[]>(kBlockKeys);
  return block[static_cast<std::size_t>(index % kBlockKeys)];
}

StampedDevice::StampedDevice(const kv::PagePool& pool, const kv::BlockTable& table) {
  for (int g = 0; g < pool.groups(); ++g) {
    const GroupId id{static_cast<std::uint32_t>(g)};
    Group group;
    group.rule = pool.group(id).rule;
    group.table.resize(static_cast<std::size_t>(table.slots()) + 1);
    const std::int64_t pages = pool.plan().pages_per_slab[id.value] * pool.slabs();
    group.blocks.resize(static_cast<std::size_t>(pages * group.rule.page_tokens / kBlockKeys + 1));
    groups_.push_back(std::move(group));
    names_.push_back(pool.group(id).name);
  }
}

void StampedDevice::begin_step(const scheduler::StepPlan& plan) {
  for (const scheduler::PageCopy& copy : plan.copies) {
    Group& group = groups_[copy.group.value];
    const std::int64_t page_tokens = group.rule.page_tokens;
    for (std::int64_t token = 0; token < copy.tokens; ++token)
      group.key(copy.to.value * page_tokens + token) = group.key(copy.from.value * page_tokens + token);
  }
  for (const kv::TableUpdate& update : plan.updates) {
    std::vector<std::uint32_t>& row = groups_[update.group.value].table[update.slot.value];
    if (row.size() <= update.entry) row.resize(std::size_t{update.entry} + 1);
    row[update.entry] = update.page.value;
  }
}

std::uint64_t* StampedDevice::key_at(Group& group, const scheduler::PlanRow& row, std::int64_t key,
                                     std::vector<std::string>& violations) {
  const std::int64_t page_tokens = group.rule.page_tokens;
  const std::vector<std::uint32_t>& entries = group.table[row.slot.value];
  const auto entry = static_cast<std::size_t>(key / page_tokens);
  const std::uint32_t page = entry < entries.size() ? entries[entry] : 0;
  if (page == 0) {
    violations.push_back(fmt::format("sequence {} key {} of {}: its table entry is page 0",
                                     row.sequence.value, key,
                                     names_[static_cast<std::size_t>(&group - groups_.data())]));
    return nullptr;
  }
  return &group.key(page * page_tokens + key % page_tokens);
}

void StampedDevice::read(Group& group, const scheduler::PlanRow& row, std::int64_t key, Stamps stamps,
                         std::vector<std::string>& violations) {
  const std::uint64_t* stamp = key_at(group, row, key, violations);
  if (stamp == nullptr || *stamp == stamps[static_cast<std::size_t>(key)]) return;
  violations.push_back(fmt::format("sequence {} reads key {} of {}: it holds {}", row.sequence.value, key,
                                   names_[static_cast<std::size_t>(&group - groups_.data())],
                                   *stamp == 0 ? "nothing" : "another sequence's key"));
}

void StampedDevice::run_row(const scheduler::PlanRow& row, Stamps stamps, bool all,
                            std::vector<std::string>& violations) {
  for (Group& group : groups_) {
    const std::int64_t begin = kv::visible_begin(group.rule, row.query_begin);
    const std::int64_t count = row.query_begin - begin;
    if (all || row.opens_slot) {
      for (std::int64_t key = begin; key < row.query_begin && violations.empty(); ++key)
        read(group, row, key, stamps, violations);
    } else if (count > 0) {
      read(group, row, begin, stamps, violations);
      read(group, row, row.query_begin - 1, stamps, violations);
      const std::uint64_t draw = mix(row.sequence.value, static_cast<std::uint64_t>(row.query_begin));
      read(group, row, begin + static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(count)), stamps,
           violations);
    }
    for (std::int64_t key = row.query_begin; key < row.visible.tokens; ++key)
      if (std::uint64_t* stamp = key_at(group, row, key, violations))
        *stamp = stamps[static_cast<std::size_t>(key)];
  }
}

}  // namespace quire::simulate
