#include "cli/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/text.h"
#include "cli/settings.h"

namespace quire::cli {

void refuse_empty(CLI::Option* option) {
  // CLI11 says the option's name before it.
  const char* said =
      option->get_required() ? "is empty: give a value" : "is empty: give a value, or leave it out";
  option->check([said](const std::string& value) { return value.empty() ? said : std::string(); });
}

Flags::Flags(CLI::App& parent, const char* name, const char* help)
    : app_(parent.add_subcommand(name, help)) {}

Flags& Flags::need(const char* name, std::string* target, const char* help) {
  CLI::Option* option = app_->add_option(name, *target, help)->required()->type_name("");
  refuse_empty(option);
  return *this;
}

CLI::Option* Flags::add_text(const char* name, std::string* target, const char* help, bool* given) {
  CLI::Option* option = app_->add_option(name, *target, help);
  if (!target->empty()) option->capture_default_str();
  if (given != nullptr) {
    option->each([given](const std::string&) { *given = true; });
  } else {
    refuse_empty(option);
  }
  return option;
}

Flags& Flags::text(const char* name, std::string* target, const char* help, bool* given) {
  add_text(name, target, help, given);
  return *this;
}

Flags& Flags::file(const char* name, std::string* target, const char* help, bool* given) {
  add_text(name, target, help, given)->type_name("FILE");
  return *this;
}

Flags& Flags::on(const char* name, bool* target, const char* help) {
  app_->add_flag(name, *target, help);
  return *this;
}

Flags& Flags::json(bool* target, const char* help) { return on("--json", target, help); }

Flags& Flags::number(const char* name, int* target, int low, int high, const char* help, bool* given) {
  CLI::Option* option = app_->add_option(name, *target, help);
  refuse_empty(option);
  option->check(CLI::Range(low, high).description(""))
      ->type_name(fmt::format("{}..{}", low, high))
      ->capture_default_str();
  if (given != nullptr) option->each([given](const std::string&) { *given = true; });
  return *this;
}

Flags& Flags::number(const char* name, std::uint64_t* target, const char* help) {
  CLI::Option* option = app_->add_option(name, *target, help);
  refuse_empty(option);
  option
      ->check([](const std::string& value) {
        std::uint64_t number = 0;
        const Status status = into(&number)(value);
        return status.ok() ? std::string() : fmt::format("{} is {}", value, status.error().message);
      })
      ->type_name("N")
      ->capture_default_str();
  return *this;
}

Flags& Flags::number(const char* name, double* target, double low, double high, const char* help) {
  // CLI::Range takes nan, which no comparison tells.
  const auto within = [low, high](const std::string& value) {
    double number = 0.0;
    if (!parse_number(value, &number)) return fmt::format("'{}' is not a number", value);
    if (number >= low && number <= high) return std::string();
    return fmt::format("{} is outside {} to {}", value, low, high);
  };
  CLI::Option* option = app_->add_option(name, *target, help);
  refuse_empty(option);
  option->check(within)->type_name("X");
  if (*target != 0.0) option->capture_default_str();
  return *this;
}

Flags& Flags::list(const char* name, std::vector<int>* target, int low, int high, const char* help) {
  // Its own parsing of the text: CLI11 takes an empty one for 0.
  const auto within = [low, high](const std::string& value) {
    int number = 0;
    if (!parse_number(value, &number)) return fmt::format("'{}' is not a whole number", value);
    if (number >= low && number <= high) return std::string();
    return fmt::format("{} is outside {} to {}", value, low, high);
  };
  app_->add_option(name, *target, help)->check(within)->delimiter(',')->type_name("N");
  return *this;
}

Flags& Flags::texts(const char* name, std::vector<std::string>* target, const char* help) {
  refuse_empty(app_->add_option(name, *target, help)->allow_extra_args(false));
  return *this;
}

Flags& Flags::group() {
  app_->require_subcommand(1);
  return *this;
}

}  // namespace quire::cli
