// The program `quire`: the list of commands, and the way from a Status to an exit code.
#include <fmt/format.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <span>
#include <system_error>

#include "base/nearest.h"
#include "cli/command.h"
#include "cli/environment.h"
#include "cli/flags.h"
#include "cli/log.h"
#include "cli/other_names.h"
#include "cli/version.h"

namespace quire::cli {

namespace {

using Apps = std::vector<const CLI::App*>;
Apps commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Flags and command names of an app, for messages about unknown ones.
std::vector<std::string> known_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

// Whether `name` is a flag with a value, of the app or a command below it.
bool takes_value(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  if (option != nullptr) return option->get_expected_max() > 0;
  const Apps below = commands_of(app);
  return std::any_of(below.begin(), below.end(),
                     [&name](const CLI::App* sub) { return takes_value(*sub, name); });
}

// "--x=", as "--x=$UNSET" becomes: CLI11 would take the argument behind it for its value.
Status check_equals(std::span<char*> arguments, const CLI::App& root) {
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    if (!name.starts_with("--") || !name.ends_with('=')) continue;
    name.pop_back();
    const std::string before = arguments[i - 1];
    const bool value = before.starts_with('-') && takes_value(root, before);
    if (!value && takes_value(root, name))
      return bad_input(fmt::format("{} is empty: give a value, or leave it out", name));
  }
  return {};
}

int report(const Error& error) {
  if (!error.message.empty()) announce(error.message, "error");
  return static_cast<int>(error.code);
}

std::string unknown_argument(const CLI::App& app, std::string_view name) {
  const std::vector<std::string> known = known_names(app);
  const std::vector<std::string_view> views(known.begin(), known.end());
  const std::string here = name_here(name, views, app.get_option_no_throw("MODEL") != nullptr);
  return fmt::format("unknown argument {}{}", name.empty() ? "''" : name,
                     here.empty() ? did_you_mean(name, views) : fmt::format(" (here: {})", here));
}

// Up to the value: "--seed" of "--seed=3".
std::string option_name(std::string_view argument) {
  return std::string(argument.substr(0, argument.find('=')));
}

bool knows_below(const CLI::App& app, const std::string& option) {
  const Apps below = commands_of(app);
  return std::any_of(below.begin(), below.end(), [&](const CLI::App* command) {
    return command->get_option_no_throw(option) != nullptr || knows_below(*command, option);
  });
}

// What stands before the command that `app` groups: CLI11 would take an option's value for the command.
Status check_order(const CLI::App& app, std::span<char*> arguments) {
  const Apps below = commands_of(app);
  std::string early;  // the first option that is none of the app's
  while (!below.empty() && !arguments.empty()) {
    const std::string_view argument = arguments.front();
    const std::string name = option_name(argument);
    arguments = arguments.subspan(1);
    if (argument.starts_with("-")) {
      if (name == "--help" || name == "-h" || name == "--version") return {};
      if (early.empty()) early = name;
      continue;
    }
    if (!early.empty()) break;
    const auto named = std::find_if(below.begin(), below.end(),
                                    [&](const CLI::App* command) { return command->get_name() == argument; });
    return named == below.end() ? Status(bad_input(unknown_argument(app, argument)))
                                : check_order(**named, arguments);
  }
  if (early.empty()) return {};
  if (!knows_below(app, early)) return bad_input(unknown_argument(app, early));
  const CLI::App* parent = app.get_parent();
  return bad_input(fmt::format("{0} stands before the command: put it behind, as in {1}{2} COMMAND {0}",
                               early, parent == nullptr ? "" : parent->get_name() + " ", app.get_name()));
}

// What CLI11 refuses, in our words and with our exit code.
int report_parse_error(const CLI::ParseError& error, const CLI::App& app) {
  std::string message = error.what();
  // Of refuse_empty(), behind CLI11's name of the option: "--x is empty", as of a setting.
  if (const std::size_t at = message.find(": is empty: "); at != std::string::npos) message.erase(at, 1);
  const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (unknown) {
    const std::vector<std::string> rest = app.remaining(true);
    message = unknown_argument(app, rest.empty() ? "" : option_name(rest.front()));
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && app.get_name() == "bench")
    message = "bench what? give one of device, attention, pages, step, scheduler, offline and serve";
  fmt::print(stderr, "quire: {}\n", message);
  return static_cast<int>(Code::bad_input);
}

// What every command has.
struct Common {
  std::string config_file;
  LogOptions log;
};

void add_version(CLI::App& app) {
  app.add_flag_callback(
         "--version", [] { throw CLI::CallForVersion(); },
         "version, commit, build, instruction sets; as JSON with --json")
      ->group(app.get_parent() == nullptr ? "Options" : "Everywhere");
}

void add_common(const Command& command, Common* common) {
  add_version(*command.app);
  refuse_empty(command.app
                   ->add_option("--config", common->config_file,
                                "file of options as below, key = value, for all commands")
                   ->type_name("FILE")
                   ->group("Everywhere"));
  add_log_settings(*command.settings, &common->log);
  command.settings->attach(*command.app);
}

Status flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return no_resources("standard output cannot be written, so the answer is not whole");
}

// `code`, if all that was printed is out.
int end_with(int code) {
  const Status status = flush_output();
  return status.ok() ? code : report(status.error());
}

// Of all commands, each once.
std::vector<std::string_view> setting_names(std::span<const Command> commands) {
  std::vector<std::string_view> names;
  for (const Command& command : commands)
    for (const Setting& setting : command.settings->all())
      if (std::find(names.begin(), names.end(), setting.name) == names.end()) names.push_back(setting.name);
  return names;
}

Status run_command(const Command& command, const Common& common, std::span<const Command> all) {
  QUIRE_TRY_STATUS(command.settings->apply(common.config_file, setting_names(all)));
  set_up_log(common.log);
  QUIRE_TRY_STATUS(check_environment(all));
  QUIRE_TRY_STATUS(command.run());
  return flush_output();
}

// What else helps, in flags that the command has.
std::string less_memory(const Command& command) {
  const std::vector<Setting>& settings = command.settings->all();
  const bool engine = std::any_of(settings.begin(), settings.end(),
                                  [](const Setting& setting) { return setting.name == "kv-memory"; });
  if (engine) return ", or ask for less at a time: fewer or shorter requests, a smaller --kv-memory";
  return command.less_memory.empty() ? "" : fmt::format(", or use a smaller {}", command.less_memory);
}

// The libraries below tell of a full machine or disk by throwing.
Status run_guarded(const Command& command, const Common& common, std::span<const Command> all) {
  try {
    return run_command(command, common, all);
  } catch (const std::bad_alloc&) {
    return no_resources(
        fmt::format("host memory ran out: raise this process's limits (ulimit -v, the container's){}",
                    less_memory(command)));
  } catch (const std::system_error& error) {
    return no_resources(fmt::format("the system refused: {}", error.what()));
  }
}

std::vector<Command> all_commands(CLI::App& root) {
  std::vector<Command> commands = {
      make_run(root),      make_chat(root),     make_score(root),  make_tokenize(root), make_detokenize(root),
      make_render(root),   make_backends(root), make_verify(root), make_info(root),     make_config(root),
      make_simulate(root), make_replay(root),   make_serve(root)};
  for (Command& command : make_bench(root)) commands.push_back(std::move(command));
  return commands;
}

// The innermost command that was named; its app holds the arguments that nobody took.
const CLI::App& named_app(const CLI::App& app) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  return named.empty() ? app : named_app(*named.front());
}

int main(int argc, char** argv) {
  CLI::App root("quire: an LLM inference engine over one paged KV cache", "quire");
  root.require_subcommand(0, 1);
  add_version(root);
  Common common;
  const std::vector<Command> commands = all_commands(root);
  for (const Command& command : commands) add_common(command, &common);
  for (CLI::App* group : root.get_subcommands([](CLI::App* app) { return !commands_of(*app).empty(); }))
    add_version(*group);
  const std::span<char*> arguments(argv, static_cast<std::size_t>(argc));
  if (const Status status = check_equals(arguments, root); !status.ok()) return report(status.error());
  if (const Status status = check_order(root, arguments.subspan(1)); !status.ok())
    return report(status.error());
  try {
    root.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return end_with(root.exit(help));
  } catch (const CLI::CallForVersion&) {
    const bool json =
        std::find(arguments.begin(), arguments.end(), std::string_view("--json")) != arguments.end();
    fmt::print("{}\n", json ? version_as_json() : version_as_text());
    return end_with(0);
  } catch (const CLI::ParseError& error) {
    return report_parse_error(error, named_app(root));
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const Status status = run_guarded(command, common, commands);
    return status.ok() ? 0 : report(status.error());
  }
  fmt::print("{}", named_app(root).help());
  return end_with(named_app(root).get_name() == "quire" ? 0 : static_cast<int>(Code::bad_input));
}

}  // namespace

}  // namespace quire::cli

int main(int argc, char** argv) { return quire::cli::main(argc, argv); }
