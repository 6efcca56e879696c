#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/check.h"

namespace quire::tokenizer {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15ull;
  x ^= x >> 29;
  return x;
}

std::uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

// A token of the word on its way: a doubly linked list in an array. id -1: merged into the one before.
struct Symbol {
  TokenId id;
  std::int32_t previous;
  std::int32_t next;
};

// A merge that may be done: the best rank first, then the leftmost.
struct Candidate {
  std::uint32_t rank;
  std::int32_t at;
  TokenId merged;
  friend bool operator>(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

}  // namespace

void StringTable::reserve(std::size_t keys) { slots_.resize(std::bit_ceil(keys * 2 + 2)); }

std::size_t StringTable::slot_of(std::string_view key) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = mix(std::hash<std::string_view>()(key)) & mask;
  while (slots_[i].id >= 0 && slots_[i].key != key) i = (i + 1) & mask;
  return i;
}

bool StringTable::insert(std::string_view key, TokenId id) {
  QUIRE_CHECK(2 * keys_ < slots_.size(), "keys={} slots={}", keys_, slots_.size());
  Slot& slot = slots_[slot_of(key)];
  const bool fresh = slot.id < 0;
  keys_ += fresh;
  slot = {key, id};
  return fresh;
}

TokenId StringTable::find(std::string_view key) const {
  return slots_.empty() ? -1 : slots_[slot_of(key)].id;
}

Bpe::Bpe(const std::vector<std::string_view>& bytes_of, const std::vector<Merge>& merges, BpeOptions options)
    : options_(options) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  if (options.ignore_merges) words_.reserve(bytes_of.size());
  for (std::size_t i = 0; i < bytes_of.size(); ++i) {
    const std::string_view bytes = bytes_of[i];
    if (bytes.empty()) continue;
    if (bytes.size() == 1) byte_ids_[static_cast<std::uint8_t>(bytes[0])] = static_cast<TokenId>(i);
    if (options.ignore_merges) words_.insert(bytes, static_cast<TokenId>(i));
  }
  rules_.resize(std::bit_ceil(merges.size() * 2 + 2));
  for (std::size_t i = 0; i < merges.size(); ++i) insert(merges[i], static_cast<std::uint32_t>(i));
}

void Bpe::insert(Merge merge, std::uint32_t rank) {
  const std::uint64_t key = pair_key(merge.left, merge.right);
  const std::size_t mask = rules_.size() - 1;
  std::size_t i = mix(key) & mask;
  while (rules_[i].merged >= 0 && rules_[i].pair != key) i = (i + 1) & mask;
  rules_[i] = {key, rank, merge.merged};
}

const Bpe::Rule* Bpe::rule(TokenId left, TokenId right) const {
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = rules_.size() - 1;
  for (std::size_t i = mix(key) & mask; rules_[i].merged >= 0; i = (i + 1) & mask) {
    if (rules_[i].pair == key) return &rules_[i];
  }
  return nullptr;
}

void Bpe::encode(std::string_view word, std::vector<TokenId>& out) const {
  if (options_.ignore_merges) {
    if (const TokenId id = words_.find(word); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  bool in_unknown = false;
  for (char c : word) {
    TokenId id = byte_ids_[static_cast<std::uint8_t>(c)];
    const bool unknown = id < 0;
    if (unknown) {
      id = options_.unknown;
      if (id < 0 || (in_unknown && options_.fuse_unknown)) continue;
    }
    in_unknown = unknown;
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::int32_t left, std::int32_t right) {
    const Rule* r =
        rule(symbols[static_cast<std::size_t>(left)].id, symbols[static_cast<std::size_t>(right)].id);
    if (r) queue.push({r->rank, left, r->merged});
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
    offer(static_cast<std::int32_t>(i), static_cast<std::int32_t>(i + 1));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(best.at)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    // One of the two may have changed since this was offered.
    const Rule* now = rule(left.id, right.id);
    if (!now || now->merged != best.merged) continue;
    left.id = best.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = best.at;
    if (left.previous >= 0) offer(left.previous, best.at);
    if (left.next >= 0) offer(best.at, left.next);
  }
  for (const Symbol& s : symbols) {
    if (s.id >= 0) out.push_back(s.id);
  }
}

}  // namespace quire::tokenizer
