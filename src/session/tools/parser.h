// What the parsers of all formats share: text outside of calls with its markers, calls with their events.
// Internal to session/tools. A parser looks at one byte after the other, so pieces cannot matter.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/tools.h"
#include "session/tools/call_text.h"

namespace quire::session {

class ParserBase : public ToolParser {
 public:
  explicit ParserBase(std::vector<std::string> names) : names_(std::move(names)) {}
  void push(std::string_view text, std::vector<ToolEvent>& events) final;
  void finish(std::vector<ToolEvent>& events) final;
  std::int32_t calls() const final { return calls_; }

 protected:
  // Takes a byte; false when it is to be given again, in another state.
  virtual bool take(char c) = 0;

  // Text between calls: `c` is content (or, dropping, nothing), held back while it may begin a marker. The
  // marker that it completes, or -1; then the white space before it and itself are in `raw_`.
  int scan(char c, std::span<const std::string_view> markers, bool dropping);
  // White space before a call is content only when there is no call.
  void content(std::string_view text);
  // What looked like a call since raw_ began is none.
  void give_back();

  // False when no tool has this name.
  bool announce(const std::string& name);
  void arguments(const std::string& text);
  // Feeds the call's object and reports what it makes known. A name that is no tool's is bad.
  CallObject::Step feed_object(char c);
  void begin_object(bool strict) {
    object_ = CallObject(strict);
    announced_ = false;
  }
  // The same for arguments whose name stands before them.
  ValueScanner::Step feed_value(char c);
  bool begin_value(const std::string& name);

  bool announced_ = false;
  std::string raw_;  // of what may be a call, from its marker on

 private:
  void emit(ToolEvent::Kind kind, std::string_view text);

  std::vector<std::string> names_;
  std::vector<ToolEvent>* events_ = nullptr;
  CallObject object_;
  ValueScanner value_;
  std::string hold_;
  std::string space_;
  std::int32_t calls_ = 0;
};

}  // namespace quire::session
