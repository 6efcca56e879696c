#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace quire::tokenizer {
namespace {

bool stands_alone(std::string_view text, const ByteRange& match) {
  const bool word_before = match.begin > 0 && is_word(last_code_point(text.substr(0, match.begin)).value);
  const bool word_after = match.end < text.size() && is_word(code_point_at(text, match.end).value);
  return !word_before && !word_after;
}

std::size_t spaces_before(std::string_view text, std::size_t end) {
  while (end > 0) {
    const CodePoint point = last_code_point(text.substr(0, end));
    if (!is_white_space(point.value)) break;
    end -= point.bytes;
  }
  return end;
}

std::size_t spaces_after(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const CodePoint point = code_point_at(text, begin);
    if (!is_white_space(point.value)) break;
    begin += point.bytes;
  }
  return begin;
}

bool special_allowed(const SpecialFilter& filter, const ByteRange& match, std::size_t text_bytes) {
  if (!filter.parse) return false;
  const std::size_t begin = filter.offset + (filter.exact ? match.begin : 0);
  const std::size_t end = filter.offset + (filter.exact ? match.end : text_bytes);
  // The first range that does not lie wholly before.
  const auto range = std::partition_point(filter.plain.begin(), filter.plain.end(),
                                          [&](const ByteRange& r) { return r.end <= begin; });
  if (range == filter.plain.end()) return true;
  if (!filter.exact) return range->begin >= end;
  return !(range->begin <= begin && end <= range->end);
}

}  // namespace

void AddedTokens::Trie::insert(std::string_view content, int index) {
  if (content.empty()) return;
  first[static_cast<std::uint8_t>(content[0])] = true;
  std::uint32_t node = 0;
  for (char c : content) {
    const std::uint64_t key = static_cast<std::uint64_t>(node) * 256 + static_cast<std::uint8_t>(c);
    const auto [it, fresh] = child.try_emplace(key, static_cast<std::uint32_t>(token.size()));
    if (fresh) token.push_back(-1);
    node = it->second;
  }
  token[node] = index;
}

int AddedTokens::Trie::longest(std::string_view text, std::size_t at, std::size_t& end) const {
  int found = -1;
  std::uint32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto it = child.find(static_cast<std::uint64_t>(node) * 256 + static_cast<std::uint8_t>(text[i]));
    if (it == child.end()) break;
    node = it->second;
    if (token[node] >= 0) {
      found = token[node];
      end = i + 1;
    }
  }
  return found;
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens,
                         const std::vector<std::string>& normalized_content)
    : tokens_(tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    (tokens[i].normalized ? normalized_ : raw_).insert(normalized_content[i], static_cast<int>(i));
  }
}

void AddedTokens::find(std::string_view text, bool in_normalized, const SpecialFilter& filter,
                       std::vector<Piece>& out) const {
  const Trie& trie = in_normalized ? normalized_ : raw_;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    ByteRange match{at, at};
    const int index =
        trie.first[static_cast<std::uint8_t>(text[at])] ? trie.longest(text, at, match.end) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    // A match that does not count still hides what begins inside it.
    at = match.end;
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    if (token.special && !special_allowed(filter, match, text.size())) continue;
    if (token.single_word && !stands_alone(text, match)) continue;
    if (token.lstrip) match.begin = std::max(spaces_before(text, match.begin), done);
    if (token.rstrip) match.end = spaces_after(text, match.end);
    if (done < match.begin) out.push_back({{done, match.begin}, -1});
    out.push_back({match, token.id});
    done = match.end;
  }
  if (done < text.size()) out.push_back({{done, text.size()}, -1});
}

}  // namespace quire::tokenizer
