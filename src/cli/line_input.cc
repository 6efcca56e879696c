#include "cli/line_input.h"

#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace quire::cli {

namespace {

constexpr int kHistoryLines = 1000;

// What terminals send for keys that libedit does not bind by itself.
constexpr const char* kKeys[][2] = {
    {"\\e[1~", "ed-move-to-beg"},      {"\\e[4~", "ed-move-to-end"}, {"\\e[7~", "ed-move-to-beg"},
    {"\\e[8~", "ed-move-to-end"},      {"\\e[H", "ed-move-to-beg"},  {"\\e[F", "ed-move-to-end"},
    {"\\e[3~", "ed-delete-next-char"}, {"\\e[1;5C", "em-next-word"}, {"\\e[1;5D", "ed-prev-word"},
    {"^R", "em-inc-search-prev"},
};

// While it lives no key of the terminal interrupts. As a signal Ctrl-C would throw away what is typed ahead,
// and could come at any moment between two keys.
class NoInterruptKey {
 public:
  NoInterruptKey() {
    changed_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    if (!changed_) return;
    termios without = before_;
    without.c_cc[VINTR] = _POSIX_VDISABLE;
    tcsetattr(STDIN_FILENO, TCSANOW, &without);
  }
  ~NoInterruptKey() {
    if (changed_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  NoInterruptKey(const NoInterruptKey&) = delete;
  NoInterruptKey& operator=(const NoInterruptKey&) = delete;

 private:
  bool changed_ = false;
  termios before_{};
};

}  // namespace

LineInput::LineInput(std::string prompt) : prompt_(std::move(prompt)) {
  if (isatty(STDIN_FILENO) == 0) return;
  // libedit drops what is no character of the locale, and a program begins in one that has ASCII only.
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  editor_.reset(el_init("quire", stdin, stdout, stderr));
  history_.reset(history_init());
  if (editor_ == nullptr || history_ == nullptr) {
    editor_.reset();
    return;
  }
  HistEvent event;
  history(history_.get(), &event, H_SETSIZE, kHistoryLines);
  EditLine* editor = editor_.get();
  el_set(editor, EL_CLIENTDATA, this);
  el_set(editor, EL_PROMPT, &LineInput::prompt_of);
  el_set(editor, EL_HIST, history, history_.get());
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_SIGNAL, 1);
  el_set(editor, EL_ADDFN, "discard-line", "Discard the line", &LineInput::discard);
  for (const auto& [keys, function] : kKeys) el_set(editor, EL_BIND, keys, function, nullptr);
  el_source(editor, nullptr);  // ~/.editrc
  el_set(editor, EL_BIND, "^C", "discard-line", nullptr);
}

LineInput::~LineInput() = default;

LineInput& LineInput::of(EditLine* editor) {
  void* self = nullptr;
  el_get(editor, EL_CLIENTDATA, &self);
  return *static_cast<LineInput*>(self);
}

char* LineInput::prompt_of(EditLine* editor) { return of(editor).prompt_.data(); }

// The line ends as by Enter, so that the cursor leaves it wherever it stood, and shows what ended it.
unsigned char LineInput::discard(EditLine* editor, int /*key*/) {
  LineInput& self = of(editor);
  const LineInfo* line = el_line(editor);
  self.typed_.assign(line->buffer, line->lastchar);
  self.discarded_ = true;
  const LineInfoW* wide = el_wline(editor);
  el_cursor(editor, static_cast<int>(wide->lastchar - wide->cursor));
  el_insertstr(editor, "^C");
  el_push(editor, "\n");
  return CC_REFRESH;
}

LineInput::Input LineInput::read() {
  if (is_terminal()) return read_edited();
  Input input;
  if (std::getline(std::cin, input.text)) input.kind = Kind::line;
  return input;
}

LineInput::Input LineInput::read_edited() {
  const NoInterruptKey guard;
  discarded_ = false;
  int bytes = 0;
  errno = 0;
  const char* line = el_gets(editor_.get(), &bytes);
  if (line == nullptr || bytes <= 0) {
    const bool signal = bytes < 0 && errno == EINTR;
    std::fputs("\n", stdout);
    return {signal ? Kind::discarded : Kind::end, ""};
  }
  if (discarded_) return {Kind::discarded, typed_};
  std::string text(line, static_cast<std::size_t>(bytes));
  if (text.back() == '\n') text.pop_back();
  if (!text.empty()) {
    HistEvent event;
    history(history_.get(), &event, H_ENTER, text.c_str());
  }
  return {Kind::line, std::move(text)};
}

}  // namespace quire::cli
