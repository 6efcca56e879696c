#include "simulate/page_aligned.h"

#include <algorithm>

namespace quire::simulate {

void PageAligned::use(User& user, std::uint64_t page) {
  const auto [at, fresh] = cached_.try_emplace(page);
  if (!fresh && at->second.users == 0) unused_.erase(at->second.at);
  ++at->second.users;
  user.pages.push_back(page);
}

void PageAligned::make_room(std::int64_t pages) {
  while (std::ssize(cached_) + own_ + pages > pages_ && !unused_.empty()) {
    cached_.erase(unused_.front());
    unused_.pop_front();
  }
}

std::int32_t PageAligned::admit(SequenceId sequence, std::span<const std::uint64_t> stamps) {
  User& user = users_[sequence.value];
  const std::size_t most = (stamps.size() - 1) / static_cast<std::size_t>(page_tokens_);
  for (std::size_t page = 0; page < most && cached_.contains(key(stamps, page)); ++page)
    use(user, key(stamps, page));
  // The prompt's pages and one of the first new token, as the scheduler promises them.
  const std::int64_t all = static_cast<std::int64_t>(stamps.size()) / page_tokens_ + 1;
  user.own = all - std::ssize(user.pages);
  own_ += user.own;
  make_room(std::ssize(users_) - 1);
  return static_cast<std::int32_t>(user.pages.size()) * page_tokens_;
}

void PageAligned::publish(SequenceId sequence, std::span<const std::uint64_t> stamps) {
  User& user = users_[sequence.value];
  const std::size_t whole = stamps.size() / static_cast<std::size_t>(page_tokens_);
  for (std::size_t page = user.pages.size(); page < whole; ++page) {
    use(user, key(stamps, page));
    --user.own;
    --own_;
  }
  grow(sequence, std::ssize(stamps));
}

void PageAligned::grow(SequenceId sequence, std::int64_t keys) {
  User& user = users_[sequence.value];
  const std::int64_t needed = keys / page_tokens_ + 1 - std::ssize(user.pages);
  if (needed > user.own) {
    own_ += needed - user.own;
    user.own = needed;
  }
  make_room(0);
}

void PageAligned::release(SequenceId sequence, std::span<const std::uint64_t> stamps) {
  const auto found = users_.find(sequence.value);
  if (found == users_.end()) return;
  publish(sequence, stamps);
  own_ -= found->second.own;
  const std::vector<std::uint64_t>& pages = found->second.pages;
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    Page& cached = cached_[*page];
    if (--cached.users == 0) cached.at = unused_.insert(unused_.end(), *page);
  }
  users_.erase(found);
  make_room(0);
}

}  // namespace quire::simulate
