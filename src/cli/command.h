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
// device, attention, pages, step, scheduler, offline, serve; the three below are among them.
std::vector<Command> make_bench(CLI::App& root);
Command make_bench_offline(CLI::App& group);
Command make_bench_pages(CLI::App& group);
Command make_bench_serve(CLI::App& group);

// The code of a Status whose message was said already: a failed check.
Error check_failed_error();

// Token ids as "1,2,3"; blanks, a comma or both stand between two.
Result<std::vector<std::int32_t>> parse_ids(const std::string& text);
Result<std::string> read_file(const std::string& path);  // "-": standard input
// Replaces the file.
Status write_file(const std::string& path, const std::string& text);
// Whether `flag`'s file can be written, found out before the work and without a trace of it: it is there and
// writable, or new in a folder that takes files. An empty path is no file.
Status check_writable(const char* flag, const std::string& path);
std::int64_t peak_rss_bytes();

}  // namespace quire::cli
