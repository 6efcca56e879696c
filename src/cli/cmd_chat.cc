// `quire chat`: a conversation on the terminal.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "cli/answer_report.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/line_input.h"
#include "cli/log.h"
#include "cli/observe.h"
#include "session/messages_json.h"

namespace quire::cli {

namespace {

// Set by Ctrl-C: ends the answer, not the program.
volatile std::sig_atomic_t interrupted = 0;
void on_interrupt(int) { interrupted = 1; }

struct Chat {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  std::string model;
  std::string system;
  bool has_system = false;  // an empty one too: many templates have one of their own where there is none
  bool explain = false;
  Options options;
  SamplingFlags sampling;
};

Status save(const std::vector<Message>& messages, const std::string& path) {
  std::ofstream output(path);
  output << session::messages_json(messages, /*indent=*/1) << "\n";
  if (!output.flush()) return bad_input(fmt::format("{}: cannot be written", path));
  return {};
}

Result<std::string> answer(const Chat& chat, Session& session, const std::vector<Message>& messages) {
  TextRequest request;
  request.messages = messages;
  request.max_tokens = chat.sampling.max_tokens;
  request.sampling = effective_sampling(*chat.settings, chat.sampling, session.defaults());
  request.sequence_index = messages.size();
  request.stop = chat.sampling.stop;
  request.ignore_eos = chat.sampling.ignore_eos;
  interrupted = 0;
  const Result<RequestId> id = session.submit(request);
  if (!id.ok()) return id.error();
  std::string text;
  std::vector<TextOutput> outputs;
  bool more = true;
  while (more) {
    outputs.clear();
    more = session.step(outputs);
    for (const TextOutput& output : outputs) {
      text += output.text;
      std::fwrite(output.text.data(), 1, output.text.size(), stdout);
      std::fflush(stdout);
      if (output.finish == Finish::failed) return bad_input(output.error);
      if (output.finish != Finish::none) fmt::print(stderr, "\n{}", figures(output, session.engine().info()));
    }
    if (interrupted != 0) {
      session.cancel(id.value());
      interrupted = 0;
    }
  }
  fmt::print("\n");
  return text;
}

constexpr std::string_view kCommands =
    "commands: /reset, /save FILE, /quit; Ctrl-C stops an answer or discards a line, Ctrl-D ends the chat";

// False: leave the program.
bool command(const std::string& line, const Chat& chat, std::vector<Message>* messages) {
  if (line == "/quit" || line == "/exit") return false;
  if (line == "/reset") {
    messages->clear();
    if (chat.has_system) messages->push_back({"system", chat.system});
    fmt::print("conversation cleared\n");
  } else if (line.rfind("/save ", 0) == 0) {
    const Status status = save(*messages, line.substr(6));
    fmt::print("{}\n",
               status.ok() ? fmt::format("{} messages saved", messages->size()) : status.error().message);
  } else {
    fmt::print("{}\n", kCommands);
  }
  return true;
}

Status run_chat(const Chat& chat) {
  QUIRE_TRY(session, Session::open(chat.model, chat.options));
  log_engine(session->engine().info(), chat.explain);
  std::signal(SIGINT, on_interrupt);
  std::vector<Message> messages;
  if (chat.has_system) messages.push_back({"system", chat.system});
  // A model that cannot chat is refused before the first question, not after it.
  std::vector<Message> probe = messages;
  probe.push_back({"user", "hello"});
  if (const Result<std::string> rendered = session->render(probe); !rendered.ok()) return rendered.error();
  LineInput input("> ");
  if (input.is_terminal()) fmt::print(stderr, "{}\n", kCommands);
  bool told_how_to_leave = false;
  for (;;) {
    const auto [kind, line] = input.read();
    if (kind == LineInput::Kind::end) break;
    if (kind == LineInput::Kind::discarded && line.empty() && !told_how_to_leave) {
      fmt::print(stderr, "Ctrl-D or /quit ends the chat\n");
      told_how_to_leave = true;
    }
    if (kind == LineInput::Kind::discarded || line.empty()) continue;
    if (line.front() == '/') {
      if (!command(line, chat, &messages)) break;
      continue;
    }
    messages.push_back({"user", line});
    const Result<std::string> text = answer(chat, *session, messages);
    if (text.ok()) {
      messages.push_back({"assistant", text.value()});
    } else {
      messages.pop_back();
      fmt::print(stderr, "quire: {}\n", text.error().message);
    }
  }
  print_observed(session->engine().stats());
  return {};
}

}  // namespace

Command make_chat(CLI::App& root) {
  auto chat = std::make_shared<Chat>();
  Flags command(root, "chat", "talk with the model (/reset, /save FILE, Ctrl-C stops an answer)");
  command.need("MODEL", &chat->model, "a Hugging Face folder or a .gguf file");
  command.text("--system", &chat->system,
               "system message; an empty one takes the place of the template's own", &chat->has_system);
  add_engine_settings(*chat->settings, &chat->options, &chat->explain);
  add_sampling_settings(*chat->settings, &chat->sampling);
  add_observe_settings(*chat->settings, &chat->options);
  return {&command.app(), chat->settings, [chat] { return run_chat(*chat); }};
}

}  // namespace quire::cli
