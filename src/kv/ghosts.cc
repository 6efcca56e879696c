#include "kv/ghosts.h"

#include <algorithm>
#include <compare>

#include "base/check.h"
#include "kv/prefix_tree.h"

namespace quire::kv {

Ghosts::Ghosts(std::int32_t page_tokens)
    : page_tokens_(static_cast<std::size_t>(page_tokens)),
      tokens_(std::make_unique_for_overwrite<std::int32_t[]>(kGhosts * page_tokens_)) {
  ghosts_.reserve(kGhosts);
  order_.reserve(kGhosts);
}

std::span<const std::int32_t> Ghosts::tokens_of(std::uint32_t slot) const {
  return {tokens_.get() + slot * page_tokens_, static_cast<std::size_t>(ghosts_[slot].tokens)};
}

// Of the first one in the order that does not stand before this page.
std::size_t Ghosts::place(std::uint64_t before, std::span<const std::int32_t> tokens) const {
  const auto found = std::partition_point(order_.begin(), order_.end(), [&](std::uint32_t slot) {
    if (ghosts_[slot].before != before) return ghosts_[slot].before < before;
    const std::span<const std::int32_t> other = tokens_of(slot);
    return std::lexicographical_compare(other.begin(), other.end(), tokens.begin(), tokens.end());
  });
  return static_cast<std::size_t>(found - order_.begin());
}

void Ghosts::add(std::uint64_t before, std::span<const std::int32_t> tokens, std::uint64_t at,
                 Pressure pressure) {
  QUIRE_CHECK(!tokens.empty() && tokens.size() <= page_tokens_, "a page of {} tokens", tokens.size());
  if (const std::size_t known = place(before, tokens); known < order_.size()) {
    Ghost& ghost = ghosts_[order_[known]];
    if (ghost.before == before && std::ranges::equal(tokens_of(order_[known]), tokens)) {
      ghost.at = at;
      ghost.pressure = pressure;
      return;
    }
  }
  if (ghosts_.size() < kGhosts) {
    ghosts_.emplace_back();
    next_ = ghosts_.size() - 1;
  } else {
    const auto oldest = static_cast<std::uint32_t>(next_);
    const std::size_t left = place(ghosts_[oldest].before, tokens_of(oldest));
    QUIRE_CHECK(order_[left] == oldest, "ghost {} is not found", oldest);
    order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(left));
  }
  const std::size_t position = place(before, tokens);
  const auto slot = static_cast<std::uint32_t>(next_);
  ghosts_[slot] = Ghost{before, at, pressure, static_cast<std::int32_t>(tokens.size())};
  std::copy(tokens.begin(), tokens.end(), tokens_.get() + slot * page_tokens_);
  order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(position), slot);
  next_ = (next_ + 1) % kGhosts;
}

// The best stands beside the place where the tokens would stand.
Ghosts::Found Ghosts::longest(std::uint64_t before, std::span<const std::int32_t> tokens) const {
  Found best;
  const std::size_t position = place(before, tokens);
  for (const std::size_t i : {position, position - 1}) {
    if (i >= order_.size()) continue;
    const Ghost& ghost = ghosts_[order_[i]];
    const std::int32_t common = ghost.before == before ? common_prefix(tokens_of(order_[i]), tokens) : 0;
    if (common > best.tokens) best = Found{common, ghost.at, ghost.pressure};
  }
  return best;
}

}  // namespace quire::kv
