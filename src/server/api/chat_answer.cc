// Writers of /v1/chat/completions.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/answer.h"
#include "server/api/call_ids.h"
#include "server/api/json_parts.h"
#include "server/api/whole_choice.h"

namespace quire::server::api {
namespace {

class ChatWriter : public Writer {
 protected:
  ChatWriter(const Call& call, AnswerHead head)
      : head_(std::move(head)), logprobs_(call.logprobs), format_(call.tool_format) {}

  Json object(const char* kind) const {
    return Json{
        {"id", "chatcmpl-" + head_.id}, {"object", kind}, {"created", head_.created}, {"model", head_.model}};
  }
  std::string id_of(std::size_t choice, std::int32_t call) const {
    return call_id(format_, head_.id, choice, static_cast<std::size_t>(call));
  }
  static Json logprobs_json(const std::vector<TextLogprob>& tokens) {
    Json content = Json::array();
    for (const TextLogprob& token : tokens) content.push_back(token_json(token));
    return Json{{"content", std::move(content)}, {"refusal", nullptr}};
  }

  AnswerHead head_;
  bool logprobs_;
  ToolFormat format_;
};

class ChatStream final : public ChatWriter {
 public:
  ChatStream(const Call& call, AnswerHead head)
      : ChatWriter(call, std::move(head)), usage_(call.include_usage) {}

  std::string piece(const Piece& piece) override {
    std::string out;
    if (piece.first) out += chunk(piece, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    // Log-probabilities go with the first text, or alone when the text is held back.
    Json logprobs = logprobs_ && !piece.logprobs.empty() ? logprobs_json(piece.logprobs) : Json(nullptr);
    for (const ToolEvent& event : piece.events) {
      out += chunk(piece, delta(piece.index, event), std::move(logprobs), nullptr);
      logprobs = nullptr;
    }
    if (!logprobs.is_null()) out += chunk(piece, {{"content", ""}}, std::move(logprobs), nullptr);
    if (!piece.finish.empty()) out += chunk(piece, Json::object(), nullptr, piece.finish);
    return out;
  }
  std::string end(const Totals& totals) override {
    if (!usage_) return std::string(kSseDone);
    return sse(with_totals(object("chat.completion.chunk"), Json::array(), totals)).append(kSseDone);
  }
  std::string fail(const ApiError& error) override { return "data: " + error_body(error) + "\n\n"; }

 private:
  Json delta(std::size_t choice, const ToolEvent& event) const {
    if (event.kind == ToolEvent::Kind::content) return {{"content", event.text}};
    Json call{{"index", event.index}};
    if (event.kind == ToolEvent::Kind::call) {
      call["id"] = id_of(choice, event.index);
      call["type"] = "function";
      call["function"] = {{"name", event.name}, {"arguments", ""}};
    } else {
      call["function"] = {{"arguments", event.text}};
    }
    return {{"tool_calls", Json::array({std::move(call)})}};
  }
  std::string chunk(const Piece& piece, Json delta, Json logprobs, Json finish) const {
    Json out = object("chat.completion.chunk");
    out["choices"] = Json::array({{{"index", piece.index},
                                   {"delta", std::move(delta)},
                                   {"logprobs", std::move(logprobs)},
                                   {"finish_reason", std::move(finish)}}});
    if (usage_) out["usage"] = nullptr;
    return sse(out);
  }

  bool usage_;
};

class ChatWhole final : public ChatWriter {
 public:
  ChatWhole(const Call& call, AnswerHead head) : ChatWriter(call, std::move(head)), choices_(call.size()) {}

  std::string piece(const Piece& piece) override {
    choices_[piece.index].take(piece);
    return "";
  }
  std::string end(const Totals& totals) override {
    Json list = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const WholeChoice& choice = choices_[i];
      list.push_back({{"index", i},
                      {"message", message(i, choice)},
                      {"logprobs", logprobs_ ? logprobs_json(choice.logprobs) : Json(nullptr)},
                      {"finish_reason", choice.finish}});
    }
    return json_text(with_totals(object("chat.completion"), std::move(list), totals));
  }

 private:
  Json message(std::size_t index, const WholeChoice& choice) const {
    Json out{{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (choice.calls.empty()) return out;
    if (choice.text.empty()) out["content"] = nullptr;
    Json& calls = out["tool_calls"] = Json::array();
    for (std::size_t i = 0; i < choice.calls.size(); ++i) {
      calls.push_back(
          {{"id", id_of(index, static_cast<std::int32_t>(i))},
           {"type", "function"},
           {"function", {{"name", choice.calls[i].name}, {"arguments", choice.calls[i].arguments}}}});
    }
    return out;
  }

  std::vector<WholeChoice> choices_;
};

}  // namespace

std::unique_ptr<Writer> make_chat_writer(const Call& call, AnswerHead head) {
  if (call.stream) return std::make_unique<ChatStream>(call, std::move(head));
  return std::make_unique<ChatWhole>(call, std::move(head));
}

}  // namespace quire::server::api
