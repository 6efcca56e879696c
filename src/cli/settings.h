// Settings: the options of a command as one list. A value comes from a flag, else from the environment
// (QUIRE_PAGE_SIZE for --page-size), else from the file given by --config, else it is the default; every
// value remembers where it came from (`quire config` prints that). One file may serve several commands: keys
// that only another knows are passed over, as in the environment, and those that none knows are refused. So
// is an empty value from anywhere: it is what a shell makes of a variable that is not set.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
}

namespace quire::cli {

enum class Origin { standard, file, environment, flag };
std::string_view to_string(Origin origin);  // "default", "file", "environment", "flag"

std::string environment_name(std::string_view name);  // "QUIRE_PAGE_SIZE" of "page-size"

struct Setting {
  std::string name;        // "page-size": the flag without its dashes
  std::string group;       // heading in --help
  std::string value_name;  // "N"; empty: a switch without a value
  std::string help;
  bool repeats = false;  // may be given several times: `set` appends
  // Parses and stores a text that is not empty; messages without the flag's name.
  std::function<Status(const std::string&)> set;
  std::function<std::string()> show;  // the present value, as text
  std::function<void()> clear = {};   // forgets a weaker origin's values; REQUIRED of those that repeat
  Origin origin = Origin::standard;
};

class Settings {
 public:
  void add(Setting setting);
  // Another help text, where a command takes a setting to mean something of its own. REQUIRES the setting.
  void describe(std::string_view name, std::string help);
  // Registers every setting as a flag. The app and this object outlive the parse.
  void attach(CLI::App& app);
  // After the parse: applies file, environment and flags in that order of rising strength. `known`: the names
  // of every command's settings, these among them.
  Status apply(const std::string& config_file, std::span<const std::string_view> known);
  const std::vector<Setting>& all() const { return settings_; }
  bool given(std::string_view name) const;  // not the default

 private:
  Status apply_file(const std::string& config_file, std::span<const std::string_view> known);
  Status apply_one(Setting& setting, const std::vector<std::string>& values, Origin origin);

  std::vector<Setting> settings_;
  std::vector<std::vector<std::string>> flag_values_;  // beside settings_
};

// Whether a Number holds the value, up to rounding: none but 0 becomes 0 or loses most of its digits.
template <class Number>
bool can_keep(double value) {
  return value == 0 || std::fabs(value) >= static_cast<double>(std::numeric_limits<Number>::min());
}
inline constexpr std::string_view kTooSmall = "too small to be told from 0: use 0, or more";

// Parsers for the usual kinds; each stores through the pointer, which outlives the setting.
std::function<Status(const std::string&)> into(std::string* target);
// One of `legal`, which outlives the setting.
std::function<Status(const std::string&)> into(std::string* target, std::span<const std::string_view> legal);
std::function<Status(const std::string&)> into(std::int32_t* target, std::int64_t low, std::int64_t high);
// 1..high, or auto, which is stored as 0.
std::function<Status(const std::string&)> into_auto(std::int32_t* target, std::int64_t high);
std::function<Status(const std::string&)> into(std::uint64_t* target);
std::function<Status(const std::string&)> into(float* target, double low, double high);
std::function<Status(const std::string&)> into_auto(float* target, double low, double high);  // auto: 0
std::function<Status(const std::string&)> into_switch(bool* target);         // on/off, true/false, 1/0
std::function<Status(const std::string&)> into_bytes(std::int64_t* target);  // 512M, 2GiB, auto

// What `show` says of a text; `empty` is what an empty one means.
std::function<std::string()> show_text(const std::string* target, std::string_view empty);

}  // namespace quire::cli
