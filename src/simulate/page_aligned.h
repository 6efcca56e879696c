// PageAligned: what a tree that shares only whole pages would have hit, at the same admissions, with the same
// pool. The usual design: whole pages found by a hash of all tokens up to their end, evicted in the order of
// last use, the ends of prefixes first. It is told what the real scheduler does and keeps books of its own.
//
// Admission keeps a page free for each running sequence, and answers join at the end, as with the scheduler.
// Otherwise it is treated well: nothing is lost to slabs, and a page of a prompt can be found from the step
// that computes it.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace quire::simulate {

class PageAligned {
 public:
  PageAligned(std::int32_t page_tokens, std::int64_t pages) : page_tokens_(page_tokens), pages_(pages) {}

  // A sequence gets its slot with `tokens` tokens to compute, the last of which is not looked up. `stamps` of
  // them all (simulate/device.h). Returns the tokens that hit.
  std::int32_t admit(SequenceId sequence, std::span<const std::uint64_t> stamps);
  // The keys [0, stamps.size()) of its prompt are computed: whole pages can be found.
  void publish(SequenceId sequence, std::span<const std::uint64_t> stamps);
  // Its answer has grown to so many keys: it needs the pages, nobody finds them.
  void grow(SequenceId sequence, std::int64_t keys);
  // It ended, or was retracted, with these keys computed; its answer can be found from now on.
  void release(SequenceId sequence, std::span<const std::uint64_t> stamps);

 private:
  struct Page {
    std::int32_t users = 0;
    std::list<std::uint64_t>::iterator at;  // in unused_, when nobody uses it
  };
  struct User {
    std::vector<std::uint64_t> pages;  // cached ones that it uses, in order
    std::int64_t own = 0;              // pages beside them
  };
  std::uint64_t key(std::span<const std::uint64_t> stamps, std::size_t page) const {
    return stamps[(page + 1) * static_cast<std::size_t>(page_tokens_) - 1];
  }
  void use(User& user, std::uint64_t page);
  // Evicts until so many pages beside those in use are free, or nothing is left to evict.
  void make_room(std::int64_t pages);

  std::int32_t page_tokens_ = 1;
  std::int64_t pages_ = 0;  // of the pool
  std::int64_t own_ = 0;    // of all users
  std::unordered_map<std::uint64_t, Page> cached_;
  std::list<std::uint64_t> unused_;  // least recently used first
  std::unordered_map<std::uint32_t, User> users_;
};

}  // namespace quire::simulate
