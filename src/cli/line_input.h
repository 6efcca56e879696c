// LineInput: lines that a person types, with editing and history (libedit) when standard input is a terminal,
// plain lines otherwise. Ctrl-C at the prompt discards the line that is being typed and nothing else: while a
// line is read it is a key like others and raises no signal. A SIGINT from elsewhere discards it too, if the
// program has a handler for it and libedit waits for a key when it comes.
// Errors: none; input that cannot be read is at its end. Not thread-safe; one at a time.
#pragma once

#include <histedit.h>

#include <memory>
#include <string>

namespace quire::cli {

class LineInput {
 public:
  enum class Kind : unsigned char { line, discarded, end };
  struct Input {
    Kind kind = Kind::end;
    std::string text;  // without the newline; of a discarded line what was typed so far, if that is known
  };

  explicit LineInput(std::string prompt);
  ~LineInput();
  LineInput(const LineInput&) = delete;
  LineInput& operator=(const LineInput&) = delete;

  bool is_terminal() const { return editor_ != nullptr; }
  Input read();

 private:
  static unsigned char discard(EditLine* editor, int key);
  static char* prompt_of(EditLine* editor);
  static LineInput& of(EditLine* editor);
  Input read_edited();

  std::string prompt_;
  bool discarded_ = false;
  std::string typed_;  // when the line was discarded
  std::unique_ptr<History, void (*)(History*)> history_{nullptr, history_end};
  std::unique_ptr<EditLine, void (*)(EditLine*)> editor_{nullptr, el_end};
};

}  // namespace quire::cli
