#include "session/tools/call_text.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace quire::session {
namespace {

constexpr std::size_t kDepthMax = 64;
constexpr std::size_t kNameBytesMax = 1024;

bool is_scalar(char c) { return is_letter_or_digit(c) || c == '-' || c == '+' || c == '.'; }

bool is_arguments(std::string_view key) { return key == "arguments" || key == "parameters"; }

}  // namespace

ValueScanner::Step ValueScanner::first(char c) {
  begun_ = true;
  if (c == '{' || c == '[') {
    closers_ = c == '{' ? "}" : "]";
  } else if (c == '"') {
    in_string_ = true;
  } else if (is_scalar(c)) {
    scalar_ = true;
  } else {
    return Step::bad;
  }
  return Step::in;
}

ValueScanner::Step ValueScanner::feed(char c) {
  if (!begun_) return first(c);
  if (scalar_) return is_scalar(c) ? Step::in : Step::past;
  if (in_string_) {
    if (escaped_ || c == '\\') {
      escaped_ = !escaped_;
    } else if (c == '"') {
      in_string_ = false;
      if (closers_.empty()) return Step::last;
    }
    return Step::in;
  }
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    if (closers_.size() == kDepthMax) return Step::bad;
    closers_ += c == '{' ? '}' : ']';
  } else if (c == '}' || c == ']') {
    if (c != closers_.back()) return Step::bad;
    closers_.pop_back();
    if (closers_.empty()) return Step::last;
  }
  return Step::in;
}

std::string CallObject::take_arguments() { return std::exchange(arguments_, {}); }

CallObject::Step CallObject::feed(char c) {
  switch (at_) {
    case At::begin:
      if (is_blank(c)) return Step::more;
      at_ = At::key;
      return c == '{' ? Step::more : Step::bad;
    case At::key:
    case At::in_key:
      return on_key(c);
    case At::colon:
      if (is_blank(c)) return Step::more;
      at_ = At::value;
      return c == ':' ? Step::more : Step::bad;
    case At::value:
    case At::in_value:
      return on_value(c);
    case At::comma:
      if (is_blank(c)) return Step::more;
      at_ = c == '}' ? At::end : At::key;
      return c == '}' ? Step::done : c == ',' ? Step::more : Step::bad;
    case At::end:
      break;
  }
  return Step::bad;
}

CallObject::Step CallObject::on_key(char c) {
  if (at_ == At::in_key) {
    if (c != '"') {
      key_ += c;
      // A key with an escape is none of ours.
      return c == '\\' || key_.size() > kNameBytesMax ? Step::bad : Step::more;
    }
    at_ = At::colon;
    const bool known = key_ == "name" || is_arguments(key_) || key_ == "id" || key_ == "type";
    const bool again = (key_ == "name" && named_) || (is_arguments(key_) && begun_);
    return again || (strict_ && !known) ? Step::bad : Step::more;
  }
  if (is_blank(c)) return Step::more;
  if (c == '}' && first_key_) {
    at_ = At::end;
    return Step::done;
  }
  first_key_ = false;
  key_.clear();
  at_ = At::in_key;
  return c == '"' ? Step::more : Step::bad;
}

CallObject::Step CallObject::on_value(char c) {
  if (at_ == At::value) {
    if (is_blank(c)) return Step::more;
    at_ = At::in_value;
    scanner_ = ValueScanner();
    value_.clear();
    streams_ = is_arguments(key_) && c == '{';
    begun_ = begun_ || streams_;
  }
  const ValueScanner::Step step = scanner_.feed(c);
  if (step == ValueScanner::Step::bad) return Step::bad;
  if (step != ValueScanner::Step::past) {
    if (streams_) {
      arguments_ += c;
    } else if (key_ == "name" || is_arguments(key_)) {
      value_ += c;
    }
    if (key_ == "name" && value_.size() > kNameBytesMax) return Step::bad;
  }
  if (step == ValueScanner::Step::in) return Step::more;
  if (end_value() == Step::bad) return Step::bad;
  at_ = At::comma;
  return step == ValueScanner::Step::past ? feed(c) : Step::more;
}

// A name must be a text; arguments may be an object that was written as a text.
CallObject::Step CallObject::end_value() {
  if (streams_ || (key_ != "name" && !is_arguments(key_))) return Step::more;
  const nlohmann::json value = nlohmann::json::parse(value_, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return Step::bad;
  if (key_ == "name") {
    name_ = value.get<std::string>();
    named_ = true;
    return name_.empty() ? Step::bad : Step::more;
  }
  arguments_ = value.get<std::string>();
  begun_ = true;
  return nlohmann::json::parse(arguments_, nullptr, /*allow_exceptions=*/false).is_object() ? Step::more
                                                                                            : Step::bad;
}

}  // namespace quire::session
