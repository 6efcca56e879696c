#include "session/tools/parser.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace quire::session {

void ParserBase::push(std::string_view text, std::vector<ToolEvent>& events) {
  events_ = &events;
  for (const char c : text) {
    while (!take(c)) {
    }
  }
}

void ParserBase::finish(std::vector<ToolEvent>& events) {
  events_ = &events;
  if (!announced_) give_back();
  content(std::exchange(hold_, {}));
  if (calls_ == 0 && !space_.empty()) emit(ToolEvent::Kind::content, std::exchange(space_, {}));
}

void ParserBase::emit(ToolEvent::Kind kind, std::string_view text) {
  const std::int32_t index = kind == ToolEvent::Kind::content ? 0 : calls_ - 1;
  if (!events_->empty() && events_->back().kind == kind && events_->back().index == index) {
    events_->back().text += text;
  } else {
    events_->push_back({kind, index, {}, std::string(text)});
  }
}

void ParserBase::content(std::string_view text) {
  for (const char c : text) {
    space_ += c;
    if (is_blank(c)) continue;
    emit(ToolEvent::Kind::content, space_);
    space_.clear();
  }
}

void ParserBase::give_back() { content(std::exchange(raw_, {})); }

int ParserBase::scan(char c, std::span<const std::string_view> markers, bool dropping) {
  hold_ += c;
  while (!hold_.empty()) {
    for (std::size_t i = 0; i < markers.size(); ++i) {
      if (!markers[i].starts_with(hold_)) continue;
      if (markers[i].size() > hold_.size()) return -1;
      raw_ += std::exchange(space_, {}) + std::exchange(hold_, {});
      return static_cast<int>(i);
    }
    if (!dropping) content(std::string_view(hold_).substr(0, 1));
    hold_.erase(0, 1);
  }
  return -1;
}

bool ParserBase::announce(const std::string& name) {
  if (!names_.empty() && std::find(names_.begin(), names_.end(), name) == names_.end()) return false;
  events_->push_back({ToolEvent::Kind::call, calls_++, name, {}});
  announced_ = true;
  raw_.clear();
  return true;
}

void ParserBase::arguments(const std::string& text) {
  if (!text.empty()) emit(ToolEvent::Kind::arguments, text);
}

CallObject::Step ParserBase::feed_object(char c) {
  const CallObject::Step step = object_.feed(c);
  if (step == CallObject::Step::bad) return step;
  const bool done = step == CallObject::Step::done;
  if (done && !object_.named()) return CallObject::Step::bad;
  if (!announced_ && (done || object_.ready()) && !announce(object_.name())) return CallObject::Step::bad;
  if (!announced_) return step;
  arguments(object_.take_arguments());
  if (done && !object_.begun()) arguments("{}");
  return step;
}

bool ParserBase::begin_value(const std::string& name) {
  value_ = ValueScanner();
  announced_ = false;
  return announce(name);
}

ValueScanner::Step ParserBase::feed_value(char c) {
  const ValueScanner::Step step = value_.feed(c);
  if (step == ValueScanner::Step::in || step == ValueScanner::Step::last) arguments(std::string(1, c));
  return step;
}

}  // namespace quire::session
