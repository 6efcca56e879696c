// Flags: the arguments of one command beside its settings: its name, positional arguments and flags of its
// own. A thin face of CLI11, so that only flags.cc, settings.cc and main.cc include that header.
//
// Targets outlive the parse. A value that does not fit is refused by the parse with the flag's name, and so
// is an empty one: it is what a shell makes of a variable that is not set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace quire::cli {

// Has the parse refuse an empty value of the option.
void refuse_empty(CLI::Option* option);

class Flags {
 public:
  // The command `name` below `parent`.
  Flags(CLI::App& parent, const char* name, const char* help);
  CLI::App& app() const { return *app_; }

  // Names are those of CLI11: "MODEL" is positional, "--ids" a flag, "-p,--prompt" both ways to write one.
  Flags& need(const char* name, std::string* target, const char* help);  // must be given
  // `given`: set when it is, so that an empty text can be told from none; only then may it be empty.
  Flags& text(const char* name, std::string* target, const char* help, bool* given = nullptr);
  Flags& file(const char* name, std::string* target, const char* help, bool* given = nullptr);  // a path
  Flags& on(const char* name, bool* target, const char* help);  // a switch without a value
  Flags& json(bool* target, const char* help = "print one JSON object");
  // low..high. `given`: set when it is.
  Flags& number(const char* name, int* target, int low, int high, const char* help, bool* given = nullptr);
  Flags& number(const char* name, std::uint64_t* target, const char* help);
  Flags& number(const char* name, double* target, double low, double high, const char* help);
  // 1,2,3, each in low..high.
  Flags& list(const char* name, std::vector<int>* target, int low, int high, const char* help);
  Flags& texts(const char* name, std::vector<std::string>* target, const char* help);  // may repeat
  // A command that only groups others: one of them must be named.
  Flags& group();

 private:
  CLI::Option* add_text(const char* name, std::string* target, const char* help, bool* given);

  CLI::App* app_;
};

}  // namespace quire::cli
