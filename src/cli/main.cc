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

// Flags and command names of an app, for messages about unknown ones.
std::vector<std::string> known_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

// Whether `name` is a flag with a value, of the app or a command below it.
bool takes_value(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  if (option != nullptr) return option->get_expected_max() > 0;
  const std::vector<const CLI::App*> below = app.get_subcommands([](const CLI::App*) { return true; });
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

// What CLI11 refuses, in our words and with our exit code.
int report_parse_error(const CLI::ParseError& error, const CLI::App& app) {
  std::string message = error.what();
  // Of refuse_empty(), behind CLI11's name of the option: "--x is empty", as of a setting.
  if (const std::size_t at = message.find(": is empty: "); at != std::string::npos) message.erase(at, 1);
  const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (unknown) {
    const std::vector<std::string> rest = app.remaining(true);
    std::string name = rest.empty() ? "" : rest.front().substr(0, rest.front().find('='));
    const std::vector<std::string> known = known_names(app);
    const std::vector<std::string_view> views(known.begin(), known.end());
    const std::string here = name_here(name, views, app.get_option_no_throw("MODEL") != nullptr);
    if (name.empty()) name = "''";
    message = fmt::format("unknown argument {}{}", name,
                          here.empty() ? did_you_mean(name, views) : fmt::format(" (here: {})", here));
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

void add_common(const Command& command, Common* common) {
  refuse_empty(command.app->add_option("--config", common->config_file, "file of options, key = value")
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

Status run_command(const Command& command, const Common& common, std::span<const Command> all) {
  QUIRE_TRY_STATUS(command.settings->apply(common.config_file));
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
  bool version = false;
  bool version_json = false;
  root.add_flag("--version", version, "version, commit, build, instruction sets");
  root.add_flag("--json", version_json, "with --version: as JSON");
  Common common;
  const std::vector<Command> commands = all_commands(root);
  for (const Command& command : commands) add_common(command, &common);
  const std::span<char*> arguments(argv, static_cast<std::size_t>(argc));
  if (const Status status = check_equals(arguments, root); !status.ok()) return report(status.error());
  try {
    root.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return end_with(root.exit(help));
  } catch (const CLI::ParseError& error) {
    return report_parse_error(error, named_app(root));
  }
  if (version) {
    fmt::print("{}\n", version_json ? version_as_json() : version_as_text());
    return end_with(0);
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
