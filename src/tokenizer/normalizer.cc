#include "tokenizer/normalizer.h"

#include <fmt/core.h>

#include <utf8proc.h>

namespace quire::tokenizer {
namespace {

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.value == kBroken) {
      out.push_back(text[at]);
    } else if (point.value == 0x130) {
      out += "i\u0307";  // the one character whose lower case is two
    } else {
      append_utf8(utf8proc_tolower(point.value), out);
    }
    at += point.bytes;
  }
  return out;
}

Result<std::string> replaced(const Regex& regex, std::string_view text, std::string_view content) {
  std::vector<ByteRange> matches;
  QUIRE_TRY_STATUS(regex.find_all(text, matches));
  if (matches.size() * content.size() > kNormalizedBytesMax) {
    return bad_input(fmt::format("the normalizer would make {} bytes of a text of {} bytes",
                                 matches.size() * content.size(), text.size()));
  }
  std::string out;
  std::size_t at = 0;
  for (const ByteRange& m : matches) {
    out += text.substr(at, m.begin - at);
    out += content;
    at = m.end;
  }
  out += text.substr(at);
  return out;
}

}  // namespace

Result<Normalizer> Normalizer::create(const std::vector<NormalizerStep>& steps) {
  Normalizer n;
  for (const NormalizerStep& s : steps) {
    Step step{s, std::nullopt};
    if (s.kind == NormalizerStep::Kind::replace_regex || s.kind == NormalizerStep::Kind::replace_text) {
      auto regex = s.kind == NormalizerStep::Kind::replace_regex ? Regex::compile(s.pattern)
                                                                 : Regex::literal(s.pattern);
      if (!regex) return regex.error();
      step.regex = std::move(*regex);
    }
    n.steps_.push_back(std::move(step));
  }
  return n;
}

Result<std::string> Normalizer::apply(std::string_view text) const {
  std::string current(text);
  for (const Step& step : steps_) {
    switch (step.what.kind) {
      case NormalizerStep::Kind::form:
        current = normalize(current, step.what.form);
        break;
      case NormalizerStep::Kind::lowercase:
        current = lowercase(current);
        break;
      case NormalizerStep::Kind::prepend:
        if (!current.empty()) current.insert(0, step.what.content);
        break;
      case NormalizerStep::Kind::replace_text:
      case NormalizerStep::Kind::replace_regex: {
        QUIRE_TRY(next, replaced(*step.regex, current, step.what.content));
        current = std::move(next);
        break;
      }
    }
  }
  return current;
}

}  // namespace quire::tokenizer
