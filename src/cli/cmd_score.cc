// `quire score`: log-probabilities of given tokens.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/log.h"
#include "engine/limits.h"
#include "session/text_model.h"

namespace quire::cli {

namespace {

struct ScoreFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  std::string model;
  std::string ids;
  std::string ids_file;
  std::string text;
  bool has_text = false;
  int top = 0;
  bool json = false;
  bool explain = false;
  Options options;
};

// --text gets the tokenizer's own special tokens, --ids none.
Result<std::vector<std::int32_t>> prompt_of(const ScoreFlags& flags) {
  if (int{!flags.ids.empty()} + int{!flags.ids_file.empty()} + int{flags.has_text} != 1) {
    return bad_input("give exactly one of --ids, --ids-file and --text");
  }
  if (!flags.ids.empty()) return parse_ids(flags.ids);
  if (!flags.ids_file.empty()) {
    QUIRE_TRY(text, read_file(flags.ids_file));
    return parse_ids(text);
  }
  QUIRE_TRY(model, session::TextModel::load(flags.model));
  QUIRE_TRY(tokenizer, model->tokenizer());
  return tokenizer->encode(flags.text, {});
}

struct Scores {
  std::vector<std::int32_t> tokens;
  std::vector<Scored> scored;
};

double perplexity(const Scores& scores) {
  double sum = 0;
  const std::size_t count = scores.tokens.size() - 1;
  for (std::size_t i = 0; i < count; ++i) sum += scores.scored[i].logprob;
  return count == 0 ? std::nan("") : std::exp(-sum / static_cast<double>(count));
}

nlohmann::ordered_json to_json(const Scores& scores, int top) {
  nlohmann::ordered_json json;
  json["tokens"] = scores.tokens;
  nlohmann::ordered_json logprobs = nlohmann::ordered_json::array({nullptr});
  nlohmann::ordered_json argmax = nlohmann::ordered_json::array();
  nlohmann::ordered_json tops = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < scores.scored.size(); ++i) {
    const Scored& at = scores.scored[i];
    if (i + 1 < scores.tokens.size()) logprobs.push_back(at.logprob);
    argmax.push_back(at.argmax);
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& [id, logprob] : at.top) list.push_back(nlohmann::ordered_json::array({id, logprob}));
    tops.push_back(std::move(list));
  }
  json["logprobs"] = std::move(logprobs);
  json["argmax"] = std::move(argmax);
  if (top > 0) json["top"] = std::move(tops);
  const double value = perplexity(scores);
  json["perplexity"] = std::isnan(value) ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(value);
  return json;
}

Status score(const ScoreFlags& flags) {
  Scores scores;
  QUIRE_TRY(prompt, prompt_of(flags));
  scores.tokens = std::move(prompt);
  QUIRE_TRY(engine, Engine::open(flags.model, flags.options));
  log_engine(engine->info(), flags.explain);
  Request request;
  request.prompt = scores.tokens;
  request.score = true;
  request.answer = false;
  request.score_top = flags.top;
  const Result<RequestId> id = engine->submit(std::move(request));
  if (!id.ok()) return id.error();
  std::vector<Output> outputs;
  bool more = true;
  while (more) {
    outputs.clear();
    more = engine->step(outputs);
    for (Output& output : outputs) {
      if (output.finish == Finish::failed) return bad_input(output.error);
      scores.scored.insert(scores.scored.end(), output.scored.begin(), output.scored.end());
    }
  }
  QUIRE_CHECK(scores.scored.size() == scores.tokens.size(), "scored={} tokens={}", scores.scored.size(),
              scores.tokens.size());
  if (flags.json) {
    fmt::print("{}\n", json_text(to_json(scores, flags.top)));
    return {};
  }
  for (std::size_t i = 1; i < scores.tokens.size(); ++i) {
    fmt::print("{:>8} {:>12.6f}\n", scores.tokens[i], scores.scored[i - 1].logprob);
  }
  fmt::print("perplexity {:.6f} over {} tokens\n", perplexity(scores), scores.tokens.size() - 1);
  return {};
}

}  // namespace

Command make_score(CLI::App& root) {
  auto flags = std::make_shared<ScoreFlags>();
  Flags command(root, "score", "log-probability of every token given those before");
  command.need("MODEL", &flags->model, "a Hugging Face folder or a .gguf file")
      .text("--ids", &flags->ids, "token ids: 1,2,3")
      .file("--ids-file", &flags->ids_file, "a file of token ids (- is standard input)")
      .text("--text", &flags->text, "text to tokenize and score", &flags->has_text)
      .number("--top", &flags->top, 0, engine::kMaxScoreTop,
              "also the N most likely tokens at every position")
      .json(&flags->json);
  add_engine_settings(*flags->settings, &flags->options, &flags->explain);
  return {&command.app(), flags->settings, [flags] { return score(*flags); }};
}

}  // namespace quire::cli
