#include "cli/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "base/text.h"
#include "cli/settings.h"

namespace quire::cli {
namespace {

// A check of our own: CLI::Range takes nan, which no comparison tells, and an empty text for 0.
template <class Number>
auto within(Number low, Number high, const char* kind) {
  return [=](const std::string& value) {
    Number number{};
    if (!parse_number(value, &number)) return fmt::format("'{}' is not a {}", value, kind);
    if (number >= low && number <= high) return std::string();
    return fmt::format("{} is outside {} to {}", value, low, high);
  };
}

// "1,2,3": CLI11's own lists drop an empty element.
Result<std::vector<int>> numbers_of(const std::string& text, int low, int high) {
  std::vector<int> numbers;
  for (std::size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
    end = text.find(',', at);
    const std::string part = text.substr(at, end - at);
    if (const std::string problem = within(low, high, "whole number")(part); !problem.empty())
      return bad_input(problem);
    parse_number(part, &numbers.emplace_back());
  }
  return numbers;
}

}  // namespace

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
  CLI::Option* option = app_->add_option(name, *target, help);
  refuse_empty(option);
  option->check(within(low, high, "number"))->type_name("X");
  if (*target != 0.0) option->capture_default_str();
  return *this;
}

Flags& Flags::list(const char* name, std::vector<int>* target, int low, int high, const char* help) {
  const auto check = [=](const std::string& text) {
    const auto numbers = numbers_of(text, low, high);
    return numbers.ok() ? std::string() : numbers.error().message;
  };
  const auto set = [=](const std::vector<std::string>& texts) {
    target->clear();
    for (const std::string& text : texts) {
      const auto numbers = numbers_of(text, low, high);
      target->insert(target->end(), numbers->begin(), numbers->end());
    }
  };
  app_->add_option_function<std::vector<std::string>>(name, set, help)
      ->check(check)
      ->allow_extra_args(false)
      ->type_name("N,...");
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
