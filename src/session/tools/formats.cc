// The formats' parsers: what stands around a call's name and arguments.
#include <array>
#include <utility>

#include "base/text.h"
#include "session/tools/markers.h"
#include "session/tools/parser.h"

namespace quire {
namespace session {
namespace {

using Marker = std::string_view;

bool is_name(char c) {
  return is_letter_or_digit(c) || c == '_' || c == '-' || c == '.' || static_cast<unsigned char>(c) >= 0x80;
}

class Hermes final : public ParserBase {
 public:
  using ParserBase::ParserBase;

 private:
  enum class At : std::uint8_t { text, call, behind };
  static constexpr std::array<Marker, 2> kMarkers = {kHermesBegin, kHermesEnd};

  bool take(char c) override {
    if (at_ != At::call) {
      // A closing marker that closes nothing is text.
      const bool dropping = at_ == At::behind;
      const int marker = scan(c, std::span(kMarkers).first(dropping ? 2 : 1), dropping);
      if (marker == 0) {
        at_ = At::call;
        begin_object(/*strict=*/false);
      } else if (marker == 1) {
        raw_.clear();
        at_ = At::text;
        announced_ = false;
      }
      return true;
    }
    if (!announced_) raw_ += c;
    const CallObject::Step step = feed_object(c);
    if (step == CallObject::Step::more) return true;
    if (step == CallObject::Step::done || announced_) {
      at_ = At::behind;
      return true;
    }
    raw_.pop_back();
    give_back();
    at_ = At::text;
    return false;
  }

  At at_ = At::text;
};

class Llama final : public ParserBase {
 public:
  using ParserBase::ParserBase;

 private:
  enum class At : std::uint8_t { begin, call, behind, text };
  bool take(char c) override {
    switch (at_) {
      case At::begin:
        return begin(c);
      case At::call:
        return call(c);
      case At::behind:
        if (c == '{') {
          raw_.clear();
          at_ = At::call;
          begin_object(/*strict=*/true);
          return false;
        }
        return true;
      case At::text:
        content(std::string_view(&c, 1));
        return true;
    }
    return true;
  }

  // White space, perhaps the tag, white space, an object.
  bool begin(char c) {
    if (c == '{' && tag_ == 0) {
      at_ = At::call;
      begin_object(/*strict=*/true);
      return false;
    }
    if (tag_ > 0 ? c == kLlamaTag[tag_] : c == kLlamaTag[0]) {
      tag_ = (tag_ + 1) % kLlamaTag.size();
    } else if (tag_ > 0 || !is_blank(c)) {
      give_back();
      at_ = At::text;
      return false;
    }
    raw_ += c;
    return true;
  }

  bool call(char c) {
    if (!announced_) raw_ += c;
    const CallObject::Step step = feed_object(c);
    if (step == CallObject::Step::more) return true;
    if (step == CallObject::Step::done || announced_) {
      at_ = At::behind;
      return true;
    }
    raw_.pop_back();
    // Behind a call there is no text.
    if (calls() > 0) raw_.clear();
    give_back();
    at_ = calls() > 0 ? At::behind : At::text;
    return calls() > 0;
  }

  At at_ = At::begin;
  std::size_t tag_ = 0;
};

class Mistral final : public ParserBase {
 public:
  using ParserBase::ParserBase;

 private:
  enum class At : std::uint8_t { text, begin, list, call, behind, name, id, args, value };
  static constexpr std::array<Marker, 1> kMarkers = {kMistralCalls};

  bool take(char c) override {
    switch (at_) {
      case At::text:
        if (scan(c, kMarkers, calls() > 0 && dropping_) == 0) {
          at_ = At::begin;
          announced_ = dropping_ = false;
          name_.clear();
          tail_.clear();
        }
        return true;
      case At::begin:
        return begin(c);
      case At::list:
      case At::behind:
        return between(c);
      case At::call:
        return call(c);
      case At::name:
      case At::id:
      case At::args:
        return head(c);
      case At::value:
        return value(c);
    }
    return true;
  }

  bool fail() {
    give_back();
    at_ = At::text;
    dropping_ = announced_;
    return false;
  }

  bool begin(char c) {
    if (c == '[' || is_blank(c)) {
      raw_ += c;
      if (c == '[') at_ = At::list;
      in_list_ = c == '[';
      return true;
    }
    if (c == '{') {
      at_ = At::call;
      begin_object(/*strict=*/false);
      return false;
    }
    if (!is_name(c)) return fail();
    at_ = At::name;
    return false;
  }

  // Before and behind the calls of a list.
  bool between(char c) {
    if (!announced_) raw_ += c;
    if (is_blank(c) || (c == ',' && at_ == At::behind)) return true;
    if (c == ']' && at_ == At::behind) {
      at_ = At::text;
      announced_ = dropping_ = false;
      return true;
    }
    if (!announced_) raw_.pop_back();
    if (c != '{') return fail();
    at_ = At::call;
    begin_object(/*strict=*/false);
    return false;
  }

  bool call(char c) {
    if (!announced_) raw_ += c;
    const CallObject::Step step = feed_object(c);
    if (step == CallObject::Step::more) return true;
    if (step == CallObject::Step::done) {
      at_ = in_list_ ? At::behind : At::text;
      return true;
    }
    if (!announced_) raw_.pop_back();
    return fail();
  }

  // f, perhaps [CALL_ID]..., perhaps [ARGS], up to the object.
  bool head(char c) {
    if (c == '{' && tail_.empty()) {
      if (!begin_value(name_)) return fail();
      at_ = At::value;
      return false;
    }
    raw_ += c;
    if (c == '[' || !tail_.empty()) {
      tail_ += c;
      if (tail_ == kMistralId && at_ == At::name) {
        at_ = At::id;
        tail_.clear();
      } else if (tail_ == kMistralArgs) {
        at_ = At::args;
        tail_.clear();
      } else if (!kMistralId.starts_with(tail_) && !kMistralArgs.starts_with(tail_)) {
        raw_.pop_back();
        return fail();
      }
      return true;
    }
    if (at_ == At::name && is_name(c)) name_ += c;
    const bool fits = is_blank(c) || (is_name(c) && at_ != At::args);
    if (fits) return true;
    raw_.pop_back();
    return fail();
  }

  bool value(char c) {
    const ValueScanner::Step step = feed_value(c);
    if (step == ValueScanner::Step::in) return true;
    at_ = At::text;
    dropping_ = step != ValueScanner::Step::last;
    if (!dropping_) announced_ = false;
    return true;
  }

  At at_ = At::text;
  bool in_list_ = false;
  bool dropping_ = false;  // behind a call that broke off
  std::string name_;
  std::string tail_;  // of a marker within the head
};

class Deepseek final : public ParserBase {
 public:
  using ParserBase::ParserBase;

 private:
  enum class At : std::uint8_t { text, calls, kind, name, fence, value, behind };
  static constexpr std::array<Marker, 4> kMarkers = {kDeepseekCallsBegin, kDeepseekCallBegin,
                                                     kDeepseekCallsEnd, kDeepseekCallEnd};

  bool take(char c) override {
    switch (at_) {
      case At::text:
      case At::calls:
      case At::behind:
        return outside(c);
      case At::kind:
      case At::name:
      case At::fence:
        return head(c);
      case At::value: {
        const ValueScanner::Step step = feed_value(c);
        if (step != ValueScanner::Step::in) at_ = At::behind;
        return true;
      }
    }
    return true;
  }

  bool outside(char c) {
    const bool text = at_ == At::text;
    const int marker = scan(c, std::span(kMarkers).first(text ? 2 : 4), !text);
    if (marker < 0) return true;
    announced_ = false;
    constexpr At kNext[] = {At::calls, At::kind, At::text, At::calls};
    at_ = kNext[marker];
    if (marker >= 2) raw_.clear();
    kind_.clear();
    name_.clear();
    fence_.clear();
    return true;
  }

  bool fail() {
    give_back();
    at_ = At::text;
    return false;
  }

  // function<｜tool▁sep｜>f\n```json\n, or f<｜tool▁sep｜>, up to the object.
  bool head(char c) {
    const bool ready = at_ == At::fence ? fence_ == kDeepseekFence : at_ == At::name && name_.empty();
    if (c == '{' && ready) {
      if (!begin_value(at_ == At::name ? kind_ : name_)) return fail();
      at_ = At::value;
      return false;
    }
    raw_ += c;
    bool fits = true;
    if (at_ == At::kind) {
      kind_ += c;
      const std::size_t sep = kind_.find(kDeepseekSep[0]);
      if (kind_.ends_with(kDeepseekSep)) {
        kind_.resize(kind_.size() - kDeepseekSep.size());
        at_ = At::name;
      } else if (sep == std::string::npos) {
        fits = is_name(c);
      } else {
        fits = kDeepseekSep.starts_with(std::string_view(kind_).substr(sep));
      }
    } else if (at_ == At::name) {
      if (is_name(c)) {
        name_ += c;
      } else if (is_blank(c)) {
        if (!name_.empty()) at_ = At::fence;
      } else {
        fits = false;
      }
    } else if (!is_blank(c)) {
      fence_ += c;
      fits = kDeepseekFence.starts_with(fence_);
    }
    if (fits) return true;
    raw_.pop_back();
    return fail();
  }

  At at_ = At::text;
  std::string kind_;  // what stands before the separator
  std::string name_;
  std::string fence_;
};

class Plain final : public ParserBase {
 public:
  using ParserBase::ParserBase;

 private:
  bool take(char c) override {
    content(std::string_view(&c, 1));
    return true;
  }
};

}  // namespace
}  // namespace session

std::string_view to_string(ToolFormat format) {
  constexpr std::string_view kNames[] = {"none", "hermes", "llama", "mistral", "deepseek"};
  return kNames[static_cast<std::size_t>(format)];
}

std::unique_ptr<ToolParser> ToolParser::make(ToolFormat format, std::vector<std::string> names) {
  switch (format) {
    case ToolFormat::hermes:
      return std::make_unique<session::Hermes>(std::move(names));
    case ToolFormat::llama:
      return std::make_unique<session::Llama>(std::move(names));
    case ToolFormat::mistral:
      return std::make_unique<session::Mistral>(std::move(names));
    case ToolFormat::deepseek:
      return std::make_unique<session::Deepseek>(std::move(names));
    case ToolFormat::none:
      break;
  }
  return std::make_unique<session::Plain>(std::move(names));
}

}  // namespace quire
