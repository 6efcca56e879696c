// Writers of /v1/responses. The stream tells the growth of an object that its last event holds whole, so both
// forms keep that object.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/answer.h"
#include "server/api/call_ids.h"
#include "server/api/json_parts.h"

namespace quire::server::api {
namespace {

struct Item {
  enum class Kind : std::uint8_t { message, call } kind = Kind::message;
  std::string id;
  std::string call_id;  // of a call
  std::string name;
  std::string text;  // of a message; arguments of a call
  std::vector<TextLogprob> logprobs;
  bool done = false;
};

class ResponseWriter final : public Writer {
 public:
  ResponseWriter(const Call& call, AnswerHead head)
      : head_(std::move(head)),
        stream_(call.stream),
        logprobs_(call.logprobs),
        format_(call.tool_format),
        repeated_(Json::parse(call.repeated)) {}

  std::string piece(const Piece& piece) override {
    out_.clear();
    if (piece.first) {
      emit("response.created", {{"response", response("in_progress", nullptr)}});
      emit("response.in_progress", {{"response", response("in_progress", nullptr)}});
    }
    held_logprobs_.insert(held_logprobs_.end(), piece.logprobs.begin(), piece.logprobs.end());
    for (const ToolEvent& event : piece.events) take(event);
    if (!piece.finish.empty()) {
      cut_ = piece.finish == "length";
      if (items_.empty()) open_message();
      close();
    }
    return std::move(out_);
  }
  std::string end(const Totals& totals) override {
    Json whole = response(cut_ ? "incomplete" : "completed", nullptr);
    if (cut_) whole["incomplete_details"] = {{"reason", "max_output_tokens"}};
    whole["usage"] = {{"input_tokens", totals.prompt_tokens},
                      {"input_tokens_details", {{"cached_tokens", totals.cached_tokens}}},
                      {"output_tokens", totals.completion_tokens},
                      {"output_tokens_details", {{"reasoning_tokens", 0}}},
                      {"total_tokens", totals.prompt_tokens + totals.completion_tokens}};
    whole["quire"] = own_json(totals);
    if (!stream_) return json_text(whole);
    out_.clear();
    emit(cut_ ? "response.incomplete" : "response.completed", {{"response", std::move(whole)}});
    return std::move(out_);
  }
  std::string fail(const ApiError& error) override {
    out_.clear();
    const std::string code = error.status < 500 ? error.code : "server_error";  // OpenAI's word
    emit("response.failed", {{"response", response("failed", {{"code", code}, {"message", error.message}})}});
    return std::move(out_);
  }

 private:
  void emit(std::string_view type, const Json& fields) {
    if (!stream_) return;
    Json event{{"type", type}};
    event["sequence_number"] = sequence_++;
    event.update(fields);
    out_ += sse(type, event);
  }

  Json response(std::string_view status, Json error) const {
    Json whole{{"id", "resp_" + head_.id}, {"object", "response"},      {"created_at", head_.created},
               {"status", status},         {"error", std::move(error)}, {"incomplete_details", nullptr},
               {"model", head_.model}};
    whole["output"] = Json::array();
    for (const Item& item : items_) whole["output"].push_back(item_json(item));
    whole.update(repeated_);
    whole["usage"] = nullptr;
    return whole;
  }

  static Json part_json(const Item& item) {
    Json logprobs = Json::array();
    for (const TextLogprob& token : item.logprobs) logprobs.push_back(token_json(token));
    return Json{{"type", "output_text"},
                {"text", item.text},
                {"annotations", Json::array()},
                {"logprobs", std::move(logprobs)}};
  }

  Json item_json(const Item& item) const {
    const char* status = !item.done                        ? "in_progress"
                         : cut_ && &item == &items_.back() ? "incomplete"
                                                           : "completed";
    if (item.kind == Item::Kind::call) {
      return Json{{"id", item.id},     {"type", "function_call"}, {"status", status},
                  {"name", item.name}, {"call_id", item.call_id}, {"arguments", item.text}};
    }
    Json content = Json::array();
    if (item.done || !item.text.empty()) content.push_back(part_json(item));
    return Json{{"id", item.id},
                {"type", "message"},
                {"status", status},
                {"role", "assistant"},
                {"content", std::move(content)}};
  }

  std::size_t index() const { return items_.size() - 1; }

  void open_message() {
    close();
    items_.push_back({.id = "msg_" + head_.id + "_" + std::to_string(items_.size())});
    emit("response.output_item.added", {{"output_index", index()}, {"item", item_json(items_.back())}});
    emit("response.content_part.added", {{"item_id", items_.back().id},
                                         {"output_index", index()},
                                         {"content_index", 0},
                                         {"part", part_json(items_.back())}});
  }

  void open_call(const ToolEvent& event) {
    close();
    items_.push_back({.kind = Item::Kind::call,
                      .id = "fc_" + head_.id + "_" + std::to_string(items_.size()),
                      .call_id = call_id(format_, head_.id, 0, static_cast<std::size_t>(event.index)),
                      .name = event.name});
    emit("response.output_item.added", {{"output_index", index()}, {"item", item_json(items_.back())}});
  }

  void take(const ToolEvent& event) {
    const bool in_message =
        !items_.empty() && !items_.back().done && items_.back().kind == Item::Kind::message;
    if (event.kind == ToolEvent::Kind::content) {
      if (!in_message) open_message();
      add_text(event.text);
    } else if (event.kind == ToolEvent::Kind::call) {
      open_call(event);
    } else {
      items_.back().text += event.text;
      emit("response.function_call_arguments.delta",
           {{"item_id", items_.back().id}, {"output_index", index()}, {"delta", event.text}});
    }
  }

  void add_text(const std::string& text) {
    Item& item = items_.back();
    item.text += text;
    emit("response.output_text.delta", {{"item_id", item.id},
                                        {"output_index", index()},
                                        {"content_index", 0},
                                        {"delta", text},
                                        {"logprobs", take_logprobs(item)}});
  }

  // Those of the tokens since the last text, into the message.
  Json take_logprobs(Item& item) {
    Json list = Json::array();
    if (!logprobs_) return list;
    for (TextLogprob& token : held_logprobs_) {
      list.push_back(token_json(token));
      item.logprobs.push_back(std::move(token));
    }
    held_logprobs_.clear();
    return list;
  }

  void close() {
    if (items_.empty() || items_.back().done) return;
    Item& item = items_.back();
    if (item.kind == Item::Kind::message && !held_logprobs_.empty()) add_text("");
    item.done = true;
    if (item.kind == Item::Kind::message) {
      const Json part = part_json(item);
      emit("response.output_text.done", {{"item_id", item.id},
                                         {"output_index", index()},
                                         {"content_index", 0},
                                         {"text", item.text},
                                         {"logprobs", part["logprobs"]}});
      emit("response.content_part.done",
           {{"item_id", item.id}, {"output_index", index()}, {"content_index", 0}, {"part", part}});
    } else {
      emit("response.function_call_arguments.done",
           {{"item_id", item.id}, {"output_index", index()}, {"name", item.name}, {"arguments", item.text}});
    }
    emit("response.output_item.done", {{"output_index", index()}, {"item", item_json(item)}});
  }

  AnswerHead head_;
  bool stream_;
  bool logprobs_;
  ToolFormat format_;
  Json repeated_;
  std::vector<Item> items_;
  std::vector<TextLogprob> held_logprobs_;
  bool cut_ = false;  // ended by a limit
  std::int64_t sequence_ = 0;
  std::string out_;
};

}  // namespace

std::unique_ptr<Writer> make_response_writer(const Call& call, AnswerHead head) {
  return std::make_unique<ResponseWriter>(call, std::move(head));
}

}  // namespace quire::server::api
