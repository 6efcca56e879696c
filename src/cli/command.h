// A command of the program: its arguments (flags.h), its settings, and what it does. Each cmd_*.cc makes one
// or a few; main.cc holds the list.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/options.h"
#include "cli/settings.h"

namespace CLI {
class App;
}

namespace quire::cli {

struct Command {
  CLI::App* app = nullptr;
  std::shared_ptr<Settings> settings;  // applied before run; main.cc adds those of every command
  std::function<Status()> run;         // an error ends the program with its code
  std::string less_memory = {};        // flags that make it need less, for when memory runs out
};

Command make_run(CLI::App& root);
Command make_chat(CLI::App& root);
Command make_score(CLI::App& root);
Command make_tokenize(CLI::App& root);
Command make_detokenize(CLI::App& root);
Command make_render(CLI::App& root);
Command make_backends(CLI::App& root);
Command make_verify(CLI::App& root);
Command make_info(CLI::App& root);
Command make_config(CLI::App& root);
Command make_simulate(CLI::App& root);
Command make_replay(CLI::App& root);
Command make_serve(CLI::App& root);
std::vector<Command> make_bench(CLI::App& root);  // device, attention, step, scheduler, offline, serve
Command make_bench_offline(CLI::App& group);      // these two of make_bench
Command make_bench_serve(CLI::App& group);

// The code of a Status whose message was said already: a failed check.
Error check_failed_error();

// Token ids as "1,2,3".
Result<std::vector<std::int32_t>> parse_ids(const std::string& text);
Result<std::string> read_file(const std::string& path);  // "-": standard input
std::int64_t peak_rss_bytes();

}  // namespace quire::cli
