// Content hashes of pages, chained: the hash of a page covers its tokens and everything before them, starting
// from its namespace. Version 1; a change of anything below is a new version. Routers compare them; the tree
// itself never trusts them (it compares tokens).
//
//   mix(h, x):  h = (h ^ x) * 0x9e3779b97f4a7c15; h ^= h >> 32; h *= 0xd6e8feb86659fd93; h ^= h >> 32
//   seed of a namespace: from 1, for each field (model, adapter, salt, media): mix its length, then its bytes
//   page: from the hash before it, mix the number of tokens, then each token
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace quire::kv {

constexpr std::uint64_t mix_hash(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 32;
  hash *= 0xd6e8feb86659fd93u;
  return hash ^ (hash >> 32);
}

// Length first: equal bytes in different fields differ.
constexpr std::uint64_t hash_field(std::uint64_t hash, std::string_view field) {
  hash = mix_hash(hash, field.size());
  for (const char byte : field) hash = mix_hash(hash, static_cast<unsigned char>(byte));
  return hash;
}

constexpr std::uint64_t hash_page(std::uint64_t before, std::span<const std::int32_t> tokens) {
  std::uint64_t hash = mix_hash(before, tokens.size());
  for (const std::int32_t token : tokens) hash = mix_hash(hash, static_cast<std::uint32_t>(token));
  return hash;
}

}  // namespace quire::kv
