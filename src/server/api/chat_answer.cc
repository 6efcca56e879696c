// Writers of /v1/chat/completions.
#include <nlohmann/json.hpp>

#include "server/api/answer.h"
#include "server/api/call_ids.h"
#include "server/api/json_parts.h"

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
    Json last = object("chat.completion.chunk");
    last["choices"] = Json::array();
    last["usage"] = usage_json(totals);
    last["quire"] = own_json(totals);
    return sse(last).append(kSseDone);
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
    Choice& choice = choices_[piece.index];
    for (const ToolEvent& event : piece.events) take(choice, event);
    choice.logprobs.insert(choice.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
    if (!piece.finish.empty()) choice.finish = piece.finish;
    return "";
  }
  std::string end(const Totals& totals) override {
    Json body = object("chat.completion");
    Json& list = body["choices"] = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      list.push_back({{"index", i},
                      {"message", message(i, choice)},
                      {"logprobs", logprobs_ ? logprobs_json(choice.logprobs) : Json(nullptr)},
                      {"finish_reason", choice.finish}});
    }
    body["usage"] = usage_json(totals);
    body["quire"] = own_json(totals);
    return dumped(body);
  }
  std::string fail(const ApiError& error) override { return error_body(error); }

 private:
  struct ToolCall {
    std::string name;
    std::string arguments;
  };
  struct Choice {
    std::string content;
    std::vector<ToolCall> calls;
    std::vector<TextLogprob> logprobs;
    std::string finish;
  };

  static void take(Choice& choice, const ToolEvent& event) {
    const auto index = static_cast<std::size_t>(event.index);
    switch (event.kind) {
      case ToolEvent::Kind::content:
        choice.content += event.text;
        break;
      case ToolEvent::Kind::call:
        choice.calls.resize(std::max(choice.calls.size(), index + 1));
        choice.calls[index].name = event.name;
        break;
      case ToolEvent::Kind::arguments:
        choice.calls.at(index).arguments += event.text;
        break;
    }
  }
  Json message(std::size_t index, const Choice& choice) const {
    Json out{{"role", "assistant"}, {"content", choice.content}, {"refusal", nullptr}};
    if (choice.calls.empty()) return out;
    if (choice.content.empty()) out["content"] = nullptr;
    Json& calls = out["tool_calls"] = Json::array();
    for (std::size_t i = 0; i < choice.calls.size(); ++i) {
      calls.push_back(
          {{"id", id_of(index, static_cast<std::int32_t>(i))},
           {"type", "function"},
           {"function", {{"name", choice.calls[i].name}, {"arguments", choice.calls[i].arguments}}}});
    }
    return out;
  }

  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<Writer> make_chat_writer(const Call& call, AnswerHead head) {
  if (call.stream) return std::make_unique<ChatStream>(call, std::move(head));
  return std::make_unique<ChatWhole>(call, std::move(head));
}

}  // namespace quire::server::api
