// Writers of /v1/completions.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/answer.h"
#include "server/api/json_parts.h"
#include "server/api/whole_choice.h"

namespace quire::server::api {
namespace {

// A choice's log-probabilities as parallel lists. `offset`: characters of its text before them; moved on.
Json logprob_lists(const std::vector<TextLogprob>& tokens, std::size_t* offset) {
  Json lists{{"tokens", Json::array()},
             {"token_logprobs", Json::array()},
             {"top_logprobs", Json::array()},
             {"text_offset", Json::array()}};
  for (const TextLogprob& token : tokens) {
    const bool known = token.logprob == token.logprob;  // the first token of a prompt follows nothing
    lists["tokens"].push_back(token_text(token.bytes));
    lists["token_logprobs"].push_back(known ? Json(finite(token.logprob)) : Json(nullptr));
    Json top = known ? Json::object() : Json(nullptr);
    for (const TextLogprob::Likely& likely : token.top)
      top[token_text(likely.bytes)] = finite(likely.logprob);
    lists["top_logprobs"].push_back(std::move(top));
    lists["text_offset"].push_back(*offset);
    *offset += characters(token.bytes);
  }
  return lists;
}

std::string text_of(const Piece& piece) {
  std::string text;
  for (const ToolEvent& event : piece.events) text += event.text;
  return text;
}

class CompletionWriter : public Writer {
 protected:
  CompletionWriter(const Call& call, AnswerHead head)
      : head_(std::move(head)), logprobs_(call.logprobs), offsets_(call.size(), 0) {}

  Json object() const {
    return Json{{"id", "cmpl-" + head_.id},
                {"object", "text_completion"},
                {"created", head_.created},
                {"model", head_.model}};
  }
  Json logprobs_of(const Piece& piece) {
    return logprobs_ ? logprob_lists(piece.logprobs, &offsets_[piece.index]) : Json(nullptr);
  }
  static Json finish_of(const Piece& piece) {
    return piece.finish.empty() ? Json(nullptr) : Json(piece.finish);
  }

  AnswerHead head_;
  bool logprobs_;
  std::vector<std::size_t> offsets_;
};

class CompletionStream final : public CompletionWriter {
 public:
  CompletionStream(const Call& call, AnswerHead head)
      : CompletionWriter(call, std::move(head)), usage_(call.include_usage) {}

  std::string piece(const Piece& piece) override {
    Json chunk = object();
    chunk["choices"] = Json::array({{{"index", piece.index},
                                     {"text", text_of(piece)},
                                     {"logprobs", logprobs_of(piece)},
                                     {"finish_reason", finish_of(piece)}}});
    if (usage_) chunk["usage"] = nullptr;
    return sse(chunk);
  }
  std::string end(const Totals& totals) override {
    if (!usage_) return std::string(kSseDone);
    return sse(with_totals(object(), Json::array(), totals)).append(kSseDone);
  }
  std::string fail(const ApiError& error) override { return "data: " + error_body(error) + "\n\n"; }

 private:
  bool usage_;
};

class CompletionWhole final : public CompletionWriter {
 public:
  CompletionWhole(const Call& call, AnswerHead head)
      : CompletionWriter(call, std::move(head)), choices_(call.size()) {}

  std::string piece(const Piece& piece) override {
    choices_[piece.index].take(piece);
    return "";
  }
  std::string end(const Totals& totals) override {
    Json list = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const WholeChoice& choice = choices_[i];
      Json logprobs = logprobs_ ? logprob_lists(choice.logprobs, &offsets_[i]) : Json(nullptr);
      list.push_back({{"index", i},
                      {"text", choice.text},
                      {"logprobs", std::move(logprobs)},
                      {"finish_reason", choice.finish}});
    }
    return json_text(with_totals(object(), std::move(list), totals));
  }

 private:
  std::vector<WholeChoice> choices_;
};

}  // namespace

std::unique_ptr<Writer> make_completion_writer(const Call& call, AnswerHead head) {
  if (call.stream) return std::make_unique<CompletionStream>(call, std::move(head));
  return std::make_unique<CompletionWhole>(call, std::move(head));
}

}  // namespace quire::server::api
