// `quire tokenize`, `detokenize`, `render`: JSON lines in, JSON lines out. No weights are read.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>

#include "cli/command.h"
#include "cli/flags.h"
#include "session/jsonl.h"
#include "session/text_model.h"

namespace quire::cli {

namespace {

struct TextFlags {
  std::string model;
  bool jsonl = false;
};

// Lines until the end of input; a bad line is answered with {"error"} and the next one goes on.
template <class F>
Status each_line(F&& answer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    fmt::print("{}\n", answer(line));
    std::fflush(stdout);
  }
  return {};
}

Status need_jsonl(const TextFlags& flags, std::string_view command) {
  if (flags.jsonl) return {};
  return bad_input(fmt::format("quire {} reads JSON lines from standard input: say --jsonl", command));
}

Status tokenize(const TextFlags& flags) {
  QUIRE_TRY_STATUS(need_jsonl(flags, "tokenize"));
  QUIRE_TRY(model, session::TextModel::load(flags.model));
  QUIRE_TRY(tokenizer, model->tokenizer());
  return each_line([&](const std::string& line) { return session::tokenize_line(*tokenizer, line); });
}

Status detokenize(const TextFlags& flags) {
  QUIRE_TRY_STATUS(need_jsonl(flags, "detokenize"));
  QUIRE_TRY(model, session::TextModel::load(flags.model));
  QUIRE_TRY(tokenizer, model->tokenizer());
  return each_line([&](const std::string& line) { return session::detokenize_line(*tokenizer, line); });
}

Status render(const TextFlags& flags) {
  QUIRE_TRY_STATUS(need_jsonl(flags, "render"));
  if (flags.model.ends_with(".jinja")) {
    QUIRE_TRY(source, read_file(flags.model));
    QUIRE_TRY(chat_template, session::ChatTemplate::parse(source, flags.model));
    return each_line([&](const std::string& line) { return session::render_line(chat_template, {}, line); });
  }
  QUIRE_TRY(model, session::TextModel::load(flags.model));
  QUIRE_TRY(chat_template, model->chat_template());
  return each_line([&](const std::string& line) {
    return session::render_line(*chat_template, model->template_tokens(), line);
  });
}

Command make(CLI::App& root, const char* name, const char* help, const char* model_help,
             Status (*run)(const TextFlags&)) {
  auto flags = std::make_shared<TextFlags>();
  Flags command(root, name, help);
  command.need("MODEL", &flags->model, model_help);
  command.on("--jsonl", &flags->jsonl, "one JSON object a line from standard input, one a line out");
  return {&command.app(), std::make_shared<Settings>(), [flags, run] { return run(*flags); }};
}

}  // namespace

Command make_tokenize(CLI::App& root) {
  return make(root, "tokenize", "text to token ids", "a Hugging Face folder or a .gguf file", tokenize);
}
Command make_detokenize(CLI::App& root) {
  return make(root, "detokenize", "token ids to text", "a Hugging Face folder or a .gguf file", detokenize);
}
Command make_render(CLI::App& root) {
  return make(root, "render", "messages through the chat template", "a model or a .jinja file", render);
}

}  // namespace quire::cli
