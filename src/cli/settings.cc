#include "cli/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/check.h"
#include "base/nearest.h"
#include "base/text.h"
#include "cli/command.h"

namespace quire::cli {

std::string environment_name(std::string_view name) {
  std::string variable = "QUIRE_";
  for (const char c : name)
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

std::string_view to_string(Origin origin) {
  switch (origin) {
    case Origin::standard:
      return "default";
    case Origin::file:
      return "file";
    case Origin::environment:
      return "environment";
    case Origin::flag:
      return "flag";
  }
  return "default";
}

void Settings::add(Setting setting) {
  QUIRE_CHECK(!setting.repeats || setting.clear, "{} repeats and cannot be cleared", setting.name);
  settings_.push_back(std::move(setting));
}

void Settings::describe(std::string_view name, std::string help) {
  const auto found = std::find_if(settings_.begin(), settings_.end(),
                                  [name](const Setting& setting) { return setting.name == name; });
  QUIRE_CHECK(found != settings_.end(), "no setting {}", name);
  found->help = std::move(help);
}

void Settings::attach(CLI::App& app) {
  flag_values_.resize(settings_.size());
  for (std::size_t i = 0; i < settings_.size(); ++i) {
    const Setting& setting = settings_[i];
    const std::string flag = "--" + setting.name;
    if (setting.value_name.empty()) {
      std::vector<std::string>* values = &flag_values_[i];
      app.add_flag_callback(
             flag, [values] { values->push_back("on"); }, setting.help)
          ->group(setting.group);
      continue;
    }
    CLI::Option* option = app.add_option(flag, flag_values_[i], setting.help)->group(setting.group);
    option->type_name(setting.value_name)->expected(1)->allow_extra_args(false);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    const std::string shown = setting.show();
    if (!shown.empty()) option->default_str(shown);
  }
}

Status Settings::apply_one(Setting& setting, const std::vector<std::string>& values, Origin origin) {
  const std::string source = origin == Origin::environment ? environment_name(setting.name)
                             : origin == Origin::file      ? "config file: " + setting.name
                                                           : "--" + setting.name;
  if (values.size() > 1 && !setting.repeats) {
    return bad_input(fmt::format("{} is given {} times: give it once", source, values.size()));
  }
  if (setting.repeats) setting.clear();
  for (const std::string& value : values) {
    if (value.empty()) {
      return bad_input(fmt::format("{} is empty: {}", source,
                                   origin == Origin::environment ? "set it to a value, or unset it"
                                                                 : "give a value, or leave it out"));
    }
    if (Status status = setting.set(value); !status.ok()) {
      return Error{status.error().code, fmt::format("{} {}: {}", source, value, status.error().message)};
    }
  }
  setting.origin = origin;
  return {};
}

Status Settings::apply_file(const std::string& config_file, std::span<const std::string_view> known) {
  QUIRE_TRY(text, read_file(config_file));
  std::istringstream input(text);
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(input);
  } catch (const CLI::Error& error) {
    return bad_input(fmt::format("--config {}: {}", config_file, error.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks for the borders of a section
    if (!item.parents.empty() || std::find(known.begin(), known.end(), item.name) == known.end()) {
      return bad_input(fmt::format("--config {}: unknown key '{}'{}", config_file, item.fullname(),
                                   did_you_mean(item.name, known)));
    }
    for (Setting& setting : settings_)
      if (setting.name == item.name) QUIRE_TRY_STATUS(apply_one(setting, item.inputs, Origin::file));
  }
  return {};
}

Status Settings::apply(const std::string& config_file, std::span<const std::string_view> known) {
  if (!config_file.empty()) QUIRE_TRY_STATUS(apply_file(config_file, known));
  for (std::size_t i = 0; i < settings_.size(); ++i) {
    if (!flag_values_[i].empty()) continue;
    if (const char* value = std::getenv(environment_name(settings_[i].name).c_str())) {
      QUIRE_TRY_STATUS(apply_one(settings_[i], {value}, Origin::environment));
    }
  }
  for (std::size_t i = 0; i < settings_.size(); ++i) {
    if (!flag_values_[i].empty()) QUIRE_TRY_STATUS(apply_one(settings_[i], flag_values_[i], Origin::flag));
  }
  return {};
}

bool Settings::given(std::string_view name) const {
  for (const Setting& setting : settings_) {
    if (setting.name == name) return setting.origin != Origin::standard;
  }
  return false;
}

std::function<Status(const std::string&)> into(std::string* target) {
  return [target](const std::string& text) -> Status {
    *target = text;
    return {};
  };
}

std::function<Status(const std::string&)> into(std::string* target, std::span<const std::string_view> legal) {
  return [=](const std::string& text) -> Status {
    if (std::find(legal.begin(), legal.end(), text) == legal.end())
      return bad_input("unknown" + did_you_mean(text, legal));
    *target = text;
    return {};
  };
}

std::function<Status(const std::string&)> into(std::int32_t* target, std::int64_t low, std::int64_t high) {
  return [=](const std::string& text) -> Status {
    std::int64_t value = 0;
    if (!parse_number(text, &value)) return bad_input("not a whole number");
    if (value < low || value > high) return bad_input(fmt::format("outside {}..{}", low, high));
    *target = static_cast<std::int32_t>(value);
    return {};
  };
}

std::function<Status(const std::string&)> into_auto(std::int32_t* target, std::int64_t high) {
  return [target, number = into(target, 1, high)](const std::string& text) -> Status {
    if (text == "auto") {
      *target = 0;
      return {};
    }
    const Status status = number(text);
    return status.ok() ? status : bad_input(status.error().message + ", and not auto");
  };
}

std::function<Status(const std::string&)> into(std::uint64_t* target) {
  return [target](const std::string& text) -> Status {
    if (!parse_number(text, target)) return bad_input("not a whole number of 0 or more");
    return {};
  };
}

std::function<Status(const std::string&)> into(float* target, double low, double high) {
  return [=](const std::string& text) -> Status {
    double value = 0;
    if (!parse_number(text, &value) || !std::isfinite(value)) return bad_input("not a number");
    if (value < low || value > high) return bad_input(fmt::format("outside {}..{}", low, high));
    if (!can_keep<float>(value)) return bad_input(std::string(kTooSmall));
    *target = static_cast<float>(value);
    return {};
  };
}

std::function<Status(const std::string&)> into_auto(float* target, double low, double high) {
  return [target, number = into(target, low, high)](const std::string& text) -> Status {
    if (text == "auto") {
      *target = 0;
      return {};
    }
    const Status status = number(text);
    return status.ok() ? status : bad_input(status.error().message + ", and not auto");
  };
}

std::function<Status(const std::string&)> into_switch(bool* target) {
  return [target](const std::string& text) -> Status {
    const bool on = text == "on" || text == "true" || text == "1";
    if (!on && text != "off" && text != "false" && text != "0") return bad_input("not on or off");
    *target = on;
    return {};
  };
}

std::function<Status(const std::string&)> into_bytes(std::int64_t* target) {
  return [target](const std::string& text) -> Status {
    if (text == "auto") {
      *target = 0;
      return {};
    }
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    std::string unit(end, text.data() + text.size());
    if (unit.size() >= 2 && unit.back() == 'B') unit.pop_back();  // 2GB, 2GiB -> 2G, 2Gi
    if (unit.size() == 2 && unit.back() == 'i') unit.pop_back();
    static const std::string_view units[] = {"", "K", "M", "G", "T"};
    for (int power = 0; power < 5; ++power) {
      const double bytes = value * std::pow(1024.0, power);
      if (error != std::errc() || unit != units[power] || !(bytes >= 1 && bytes <= 1e15)) continue;
      if (power == 0 && bytes != std::floor(bytes)) break;
      *target = static_cast<std::int64_t>(bytes);
      return {};
    }
    return bad_input("not a size: give whole bytes or 64M, 2G, auto (K, M, G, T are powers of 1024)");
  };
}

std::function<std::string()> show_text(const std::string* target, std::string_view empty) {
  return [target, empty] { return target->empty() ? std::string(empty) : *target; };
}

}  // namespace quire::cli
