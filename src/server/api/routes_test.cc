// The routes over an EngineLoop with a session that has no model.
#include "server/api/routes.h"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/api/json.h"
#include "server/loop/fake_session.h"
#include "server/testing/soon.h"

namespace quire::server {
namespace {

using api::Json;

// Keeps what it is given.
class Recorded final : public Responder {
 public:
  void send(HttpAnswer answer) override {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
    end();
  }
  void start_stream(int status, const std::string& content_type, HttpFields) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(streaming_);
    streaming_ = true;
    answer_.status = status;
    answer_.content_type = content_type;
  }
  void write(std::string_view bytes) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(streaming_ && !ended_);
    answer_.body += bytes;
    changed_.notify_all();
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    end();
  }
  bool closed() const override { return false; }
  void on_close(std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    on_close_ = std::move(callback);
  }

  // The client leaves.
  void leave() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      callback = std::move(on_close_);
    }
    callback();
  }
  HttpAnswer wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ended_; }));
    return answer_;
  }
  bool wait_for_bytes() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !answer_.body.empty(); });
  }

 private:
  void end() {
    EXPECT_FALSE(ended_) << "a second end";
    ended_ = true;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  HttpAnswer answer_;
  std::function<void()> on_close_;
  bool streaming_ = false;
  bool ended_ = false;
};

class RoutesTest : public ::testing::Test {
 protected:
  explicit RoutesTest(std::int32_t room = 1 << 20) {
    auto session = std::make_unique<FakeSession>(room);
    session_ = session.get();
    loop_ = std::make_unique<EngineLoop>(std::move(session));
    add_api_routes(router_, *loop_, {.model = "dir/m", .served_model_name = "org/m", .created = 5});
  }

  std::shared_ptr<Recorded> start(const char* method, const char* path, std::string body) {
    const Router::Match match = router_.find(method, path);
    EXPECT_NE(match.handler, nullptr) << path;
    auto responder = std::make_shared<Recorded>();
    HttpRequest request{.method = method, .path = path, .params = match.params, .body = std::move(body)};
    (*match.handler)(std::move(request), responder);
    return responder;
  }
  HttpAnswer call(const char* method, const char* path, std::string body = "") {
    return start(method, path, std::move(body))->wait();
  }

  FakeSession* session_ = nullptr;
  std::unique_ptr<EngineLoop> loop_;
  Router router_;
};

TEST_F(RoutesTest, ModelsAreListedByName) {
  const Json list = Json::parse(call("GET", "/v1/models").body);
  EXPECT_EQ(list["data"][0]["id"], "org/m");
  EXPECT_EQ(list["data"][0]["created"], 5);
  EXPECT_EQ(Json::parse(call("GET", "/v1/models/org/m").body)["id"], "org/m");
  EXPECT_EQ(call("GET", "/v1/models/org/n").status, 404);
}

TEST_F(RoutesTest, WholeAndStreamedAnswers) {
  const Json whole = Json::parse(call("POST", "/v1/completions", R"({"prompt":"a","max_tokens":3})").body);
  EXPECT_EQ(whole["choices"][0]["text"], "t0 t1 t2 ");
  EXPECT_EQ(whole["model"], "org/m");
  const HttpAnswer stream =
      call("POST", "/v1/chat/completions",
           R"({"messages":[{"role":"user","content":"a"}],"max_tokens":3,"stream":true})");
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(stream.content_type, "text/event-stream; charset=utf-8");
  EXPECT_NE(stream.body.find("\"content\":\"t2 \""), std::string::npos);
  EXPECT_EQ(stream.body.substr(stream.body.size() - 14), "data: [DONE]\n\n");
  const Json response =
      Json::parse(call("POST", "/v1/responses", R"({"input":"a","max_output_tokens":2})").body);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "t0 t1 ");
  EXPECT_EQ(response["status"], "incomplete");
}

TEST_F(RoutesTest, ChoicesOfSeveralPromptsComeByIndex) {
  const Json whole =
      Json::parse(call("POST", "/v1/completions", R"({"prompt":["a","b"],"n":2,"max_tokens":2})").body);
  ASSERT_EQ(whole["choices"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(whole["choices"][i]["index"], i);
}

TEST_F(RoutesTest, RefusalsHaveTheirStatus) {
  const auto with = [&](const char* prompt, bool stream) {
    return call("POST", "/v1/completions", fmt::format(R"({{"prompt":"{}","stream":{}}})", prompt, stream));
  };
  for (const bool stream : {false, true}) {
    EXPECT_EQ(with("bad", stream).status, 400);
    EXPECT_EQ(with("late", stream).status, 400);
    const HttpAnswer huge = with("huge", stream);
    EXPECT_EQ(huge.status, 400);
    EXPECT_EQ(Json::parse(huge.body)["error"]["code"], "context_length_exceeded");
  }
  EXPECT_EQ(call("POST", "/v1/completions", "{").status, 400);
  loop_->begin_drain();
  const HttpAnswer draining = with("a", true);
  EXPECT_EQ(draining.status, 503);
  EXPECT_EQ(draining.headers.at(0).first, "retry-after");
}

TEST_F(RoutesTest, AGrammarThatCannotBeKeptIsTheClientsError) {
  const auto with = [&](bool stream) {
    return call("POST", "/v1/completions",
                fmt::format(R"({{"prompt":"ambiguous","max_tokens":9,"stream":{}}})", stream));
  };
  const HttpAnswer whole = with(false);
  EXPECT_EQ(whole.status, 400);
  const Json error = Json::parse(whole.body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_NE(error["message"].get<std::string>().find("too many ways"), std::string::npos) << whole.body;
  const std::string streamed = with(true).body;
  EXPECT_NE(streamed.find("t0 "), std::string::npos);  // it had begun
  EXPECT_TRUE(streamed.ends_with("data: " + whole.body + "\n\n")) << streamed;
}

class FullRoutesTest : public RoutesTest {
 protected:
  FullRoutesTest() : RoutesTest(1) {}
};

TEST_F(FullRoutesTest, AFullQueueSaysWhenToComeAgain) {
  session_->steps_allowed = 0;
  const auto first = start("POST", "/v1/completions", R"({"prompt":"a","max_tokens":2})");
  const HttpAnswer second = call("POST", "/v1/completions", R"({"prompt":"a","max_tokens":2})");
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(second.headers.at(0).first, "retry-after");
  EXPECT_EQ(Json::parse(second.body)["error"]["type"], "rate_limit_error");
  session_->steps_allowed = 1 << 20;
  EXPECT_EQ(first->wait().status, 200);
}

TEST_F(RoutesTest, AClientThatLeavesEndsItsRequest) {
  for (const char* stream : {"false", "true"}) {
    session_->steps_allowed = 3;
    const auto responder = start("POST", "/v1/completions",
                                 fmt::format(R"({{"prompt":"a","max_tokens":1000000,"stream":{}}})", stream));
    if (std::string(stream) == "true") {
      EXPECT_TRUE(responder->wait_for_bytes());
    }
    responder->leave();
    responder->wait();
    // The count is published after the last update.
    ASSERT_TRUE(soon([&] { return loop_->pulse().unfinished == 0; }));
  }
}

TEST_F(RoutesTest, TokenizeAndDetokenize) {
  EXPECT_EQ(Json::parse(call("POST", "/tokenize", R"({"prompt":"a"})").body)["count"], 0);
  EXPECT_EQ(Json::parse(call("POST", "/detokenize", R"({"tokens":[1]})").body)["prompt"], "");
  // Bounded as the prompts of other routes are: the session has no context to speak of.
  const auto prompt_of = [](std::size_t bytes) { return Json{{"prompt", std::string(bytes, 'a')}}.dump(); };
  EXPECT_EQ(call("POST", "/tokenize", prompt_of(std::size_t{1} << 20)).status, 200);
  const HttpAnswer over = call("POST", "/tokenize", prompt_of((std::size_t{1} << 20) + 1));
  EXPECT_EQ(over.status, 400);
  EXPECT_EQ(Json::parse(over.body)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(Json::parse(over.body)["error"]["param"], "prompt");
  for (const auto& [path, body, param] :
       {std::tuple{"/tokenize", R"({})", "prompt"},
        {"/tokenize", R"({"prompt":"a","messages":[{"role":"user","content":"a"}]})", "prompt"},
        {"/tokenize", R"({"prompt":1})", "prompt"},
        {"/detokenize", R"({})", "tokens"},
        {"/detokenize", R"({"tokens":[-1]})", "tokens[0]"},
        {"/detokenize", R"({"tokens":["1"]})", "tokens[0]"}}) {
    const HttpAnswer answer = call("POST", path, body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(Json::parse(answer.body)["error"]["param"], param) << body;
  }
}

// Every $ref of the document leads somewhere, and every route of it is there.
void check_references(const Json& document, const Json& at) {
  if (at.is_object() && at.contains("$ref")) {
    const std::string path = at["$ref"].get<std::string>().substr(1);
    EXPECT_TRUE(document.contains(Json::json_pointer(path))) << path;
  }
  if (at.is_structured())
    for (const Json& child : at) check_references(document, child);
}

TEST_F(RoutesTest, TheDocumentDescribesTheRoutes) {
  const Json document = Json::parse(call("GET", "/openapi.json").body);
  check_references(document, document);
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, route] : methods.items()) {
      EXPECT_NE(router_.find(method == "get" ? "GET" : "POST", path).handler, nullptr) << path;
    }
  }
  const Json& chat = document["components"]["schemas"]["ChatRequest"];
  EXPECT_EQ(chat["required"].dump(), R"(["messages"])");
  EXPECT_EQ(chat["properties"]["temperature"]["maximum"], 2.0);
}

}  // namespace
}  // namespace quire::server
