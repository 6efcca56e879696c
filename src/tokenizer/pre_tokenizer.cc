#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "tokenizer/byte_level.h"

namespace quire::tokenizer {

namespace {

// A part of a word: what the pattern matched, or what lies between.
struct Part {
  ByteRange range;
  bool match = false;
};

// Fills the gaps between matches, so that the parts cover all `bytes`.
std::vector<Part> parts_of(const std::vector<ByteRange>& matches, std::size_t bytes, bool invert) {
  std::vector<Part> parts;
  std::size_t at = 0;
  for (const ByteRange& m : matches) {
    if (m.begin > at) parts.push_back({{at, m.begin}, invert});
    parts.push_back({m, !invert});
    at = m.end;
  }
  if (at < bytes) parts.push_back({{at, bytes}, invert});
  return parts;
}

template <class Test>
void find_characters(std::string_view text, Test test, std::vector<ByteRange>& out) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (test(point.value)) out.push_back({at, at + point.bytes});
    at += point.bytes;
  }
}

void merge_with_previous(const std::vector<Part>& parts, std::vector<ByteRange>& out) {
  bool previous = false;
  for (const Part& part : parts) {
    if (part.match && !previous && !out.empty()) {
      out.back().end = part.range.end;
    } else {
      out.push_back(part.range);
    }
    previous = part.match;
  }
}

void merge_with_next(const std::vector<Part>& parts, std::vector<ByteRange>& out) {
  bool previous = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->match && !previous && !out.empty()) {
      out.back().begin = part->range.begin;
    } else {
      out.push_back(part->range);
    }
    previous = part->match;
  }
  std::reverse(out.begin(), out.end());
}

std::vector<ByteRange> joined(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<ByteRange> out;
  switch (behavior) {
    case SplitBehavior::isolated:
      for (const Part& part : parts) out.push_back(part.range);
      break;
    case SplitBehavior::removed:
      for (const Part& part : parts) {
        if (!part.match) out.push_back(part.range);
      }
      break;
    case SplitBehavior::merged_with_previous:
      merge_with_previous(parts, out);
      break;
    case SplitBehavior::merged_with_next:
      merge_with_next(parts, out);
      break;
    case SplitBehavior::contiguous: {
      bool previous = false;
      for (const Part& part : parts) {
        if (part.match == previous && !out.empty()) {
          out.back().end = part.range.end;
        } else {
          out.push_back(part.range);
        }
        previous = part.match;
      }
      break;
    }
  }
  return out;
}

// Rewrites every word with `change`, keeping the borders.
template <class Change>
void rewrite(Words& words, Change change) {
  std::string text;
  for (ByteRange& range : words.ranges) {
    const std::size_t begin = text.size();
    change(std::string_view(words.text).substr(range.begin, range.end - range.begin), text);
    range = {begin, text.size()};
  }
  words.text = std::move(text);
}

void add_prefix_spaces(Words& words) {
  const auto needs = [&](const ByteRange& r) { return words.text[r.begin] != ' '; };
  if (std::none_of(words.ranges.begin(), words.ranges.end(), needs)) return;
  rewrite(words, [](std::string_view word, std::string& out) {
    if (word.front() != ' ') out += ' ';
    out += word;
  });
}

}  // namespace

Result<PreTokenizer> PreTokenizer::create(const std::vector<PreStep>& steps) {
  PreTokenizer p;
  for (const PreStep& s : steps) {
    Step step{s, std::nullopt};
    const bool byte_level = s.kind == PreStep::Kind::byte_level;
    if (s.kind == PreStep::Kind::regex || s.kind == PreStep::Kind::text || (byte_level && s.use_regex)) {
      auto regex = s.kind == PreStep::Kind::text ? Regex::literal(s.pattern)
                                                 : Regex::compile(byte_level ? kGpt2Pattern : s.pattern);
      if (!regex) return regex.error();
      step.regex = std::move(*regex);
    }
    p.steps_.push_back(std::move(step));
  }
  return p;
}

Status PreTokenizer::split(const Step& step, Words& words) const {
  std::vector<ByteRange> ranges;
  std::vector<ByteRange> matches;
  for (const ByteRange& range : words.ranges) {
    const std::string_view word = std::string_view(words.text).substr(range.begin, range.end - range.begin);
    matches.clear();
    if (step.regex) {
      QUIRE_TRY_STATUS(step.regex->find_all(word, matches));
    } else if (step.what.kind == PreStep::Kind::digits) {
      find_characters(word, is_numeric, matches);
    } else {
      find_characters(word, is_punctuation, matches);
    }
    for (const ByteRange& r : joined(parts_of(matches, word.size(), step.what.invert), step.what.behavior)) {
      if (r.end > r.begin) ranges.push_back({range.begin + r.begin, range.begin + r.end});
    }
  }
  words.ranges = std::move(ranges);
  return {};
}

Result<Words> PreTokenizer::cut(std::string text) const {
  Words words{std::move(text), {}, false};
  if (!words.text.empty()) words.ranges.push_back({0, words.text.size()});
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (step.what.kind != PreStep::Kind::byte_level) {
      QUIRE_TRY_STATUS(split(step, words));
      continue;
    }
    if (step.what.add_prefix_space) add_prefix_spaces(words);
    if (step.regex) QUIRE_TRY_STATUS(split(step, words));
    // Steps after this one see the alphabet; without any the bytes can stay, which is what BPE wants.
    if (i + 1 < steps_.size()) {
      rewrite(words, [](std::string_view word, std::string& out) { out += bytes_to_chars(word); });
      words.in_alphabet = true;
    }
  }
  return words;
}

}  // namespace quire::tokenizer
