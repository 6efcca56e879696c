// The JSON of one tool call, byte by byte: the pieces that all formats' parsers are made of. Internal to
// session/tools.
#pragma once

#include <cstdint>
#include <string>

namespace quire::session {

// Where a JSON value ends. Looks at strings and brackets only: what is inside is the client's to judge.
class ValueScanner {
 public:
  enum class Step : std::uint8_t {
    in,    // the byte belongs to the value
    last,  // and ends it
    past,  // the byte is behind the value
    bad,   // no value
  };
  Step feed(char c);

 private:
  Step first(char c);
  std::string closers_;
  bool begun_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  bool scalar_ = false;
};

// {"name": "f", "arguments": {...}}, with "parameters" for "arguments" and keys in any order.
class CallObject {
 public:
  enum class Step : std::uint8_t { more, done, bad };

  // `strict`: a key that no call has is bad at once.
  explicit CallObject(bool strict = false) : strict_(strict) {}
  Step feed(char c);

  bool ready() const { return named_ && begun_; }  // its name is known, and its arguments have begun
  bool named() const { return named_; }
  const std::string& name() const { return name_; }
  bool begun() const { return begun_; }
  // What is new of the arguments.
  std::string take_arguments();

 private:
  enum class At : std::uint8_t { begin, key, in_key, colon, value, in_value, comma, end };
  Step on_key(char c);
  Step on_value(char c);
  Step end_value();

  bool strict_;
  At at_ = At::begin;
  ValueScanner scanner_;
  std::string key_;
  std::string value_;  // of the name, or of arguments that are no object
  std::string name_;
  std::string arguments_;  // not taken yet
  bool first_key_ = true;
  bool named_ = false;
  bool begun_ = false;
  bool streams_ = false;  // the value at hand is the arguments' object
};

}  // namespace quire::session
