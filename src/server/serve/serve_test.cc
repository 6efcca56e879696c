#include "server/serve/serve.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/http/testing/client.h"
#include "server/loop/fake_session.h"
#include "server/serve/health.h"
#include "server/testing/soon.h"

namespace quire::server {
namespace {

class FileOfKeys : public testing::Test {
 protected:
  Result<std::vector<std::string>> read(const std::string& text) {
    const std::string path = testing::TempDir() + fmt::format("keys-{}", getpid());
    std::ofstream(path) << text;
    Result<std::vector<std::string>> keys = read_api_keys(path);
    std::filesystem::remove(path);
    return keys;
  }
};

TEST_F(FileOfKeys, OneALine) {
  const Result<std::vector<std::string>> keys = read("# of the web team\nalpha\r\n\nbeta  \n");
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ(*keys, (std::vector<std::string>{"alpha", "beta"}));
}

TEST_F(FileOfKeys, WhatIsNoKeyIsRefused) {
  EXPECT_NE(read("# only this\n").error().message.find("no key"), std::string::npos);
  EXPECT_NE(read("a\n\nb c\n").error().message.find("line 3"), std::string::npos);
  EXPECT_FALSE(read_api_keys("/nowhere/keys").ok());
}

TEST(Ready, SaysNoWhenTheEngineDoesNotMove) {
  auto session = std::make_unique<FakeSession>();
  FakeSession* fake = session.get();
  fake->steps_allowed = 0;
  EngineLoop loop(std::move(session));
  Router router;
  add_health_routes(router, loop, /*ready_s=*/0.05);
  HttpServerOptions options;
  options.port = 0;
  Result<std::unique_ptr<HttpServer>> http = HttpServer::listen(options, router);
  ASSERT_TRUE(http.ok());
  (*http)->start();
  TestClient client((*http)->port());
  TestAnswer ready = client.get("/ready");
  EXPECT_EQ(ready.status, 200) << ready.body;
  TextRequest request;
  request.max_tokens = 1;
  loop.submit({request}, [](const Update&) {});
  const auto leaves = [&](int status) {
    return soon([&] {
      ready = client.get("/ready");
      return ready.status != status;
    });
  };
  EXPECT_TRUE(leaves(200));
  EXPECT_EQ(ready.status, 503);
  EXPECT_NE(ready.body.find("does not move"), std::string::npos) << ready.body;
  EXPECT_EQ(client.get("/health").status, 200);
  fake->steps_allowed = 1;
  EXPECT_TRUE(leaves(503));
  EXPECT_EQ(ready.status, 200) << ready.body;
  loop.begin_drain();
  EXPECT_NE(client.get("/ready").body.find("draining"), std::string::npos);
}

// A server in a process of its own, whose steps take a while.
class Serve : public testing::Test {
 protected:
  ~Serve() override {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
  }
  void start(double drain_s, int port = 0) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      ServeOptions options;
      options.served_model_name = "fake";
      options.http.port = port;
      options.drain_s = drain_s;
      auto session = std::make_unique<FakeSession>();
      session->step_ms = 5;
      const Status status = serve(options, std::move(session), "{}", [&](const std::string& line) {
        const std::string with_end = line + "\n";
        static_cast<void>(!write(ends[1], with_end.data(), with_end.size()));
      });
      _exit(status.ok() ? 0 : 1);
    }
    close(ends[1]);
    std::string line;
    char c = 0;
    while (read(ends[0], &c, 1) == 1 && c != '\n') line += c;
    close(ends[0]);
    const std::size_t colon = line.rfind(':');
    ASSERT_NE(colon, std::string::npos) << line;
    port_ = std::atoi(line.c_str() + colon + 1);
  }
  // A completion of so many tokens, of which some have arrived.
  TestClient begin_stream(int tokens) {
    TestClient client(port_);
    const std::string body =
        fmt::format(R"({{"model":"fake","prompt":"a","max_tokens":{},"stream":true}})", tokens);
    client.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{}",
                            body.size(), body));
    EXPECT_TRUE(client.read_until("t1 ")) << client.unread();
    return client;
  }
  // Exit status of the process as the shell gives it; -1 when it does not end.
  int wait_end() {
    int status = 0;
    if (!soon([&] { return waitpid(child_, &status, WNOHANG) != 0; })) return -1;
    child_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  pid_t child_ = 0;
  int port_ = 0;
};

TEST_F(Serve, TheFirstSignalLetsAnswersEnd) {
  start(/*drain_s=*/20);
  TestClient stream = begin_stream(100);
  TestClient other(port_);
  EXPECT_EQ(other.get("/ready").status, 200);
  kill(child_, SIGTERM);
  TestAnswer ready = other.get("/ready");
  while (ready.status == 200) ready = other.get("/ready");
  EXPECT_EQ(ready.status, 503);
  const TestAnswer refused = other.post("/v1/completions", R"({"model":"fake","prompt":"a"})");
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_NE(refused.header("retry-after"), "");
  const TestAnswer answer = stream.read();
  EXPECT_TRUE(answer.whole);
  EXPECT_NE(answer.body.find("t99 "), std::string::npos);
  EXPECT_NE(answer.body.find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(wait_end(), 0);
}

TEST_F(Serve, AtTheDeadlineAnswersAreCancelled) {
  start(/*drain_s=*/0.05);
  TestClient stream = begin_stream(1'000'000);
  kill(child_, SIGINT);
  EXPECT_TRUE(stream.ended());
  EXPECT_EQ(wait_end(), 0);
}

TEST_F(Serve, TheSecondSignalEndsItAtOnce) {
  start(/*drain_s=*/1000);
  TestClient stream = begin_stream(1'000'000);
  kill(child_, SIGTERM);
  TestClient other(port_);
  while (other.get("/ready").status == 200) {
  }
  kill(child_, SIGTERM);
  EXPECT_EQ(wait_end(), 128 + SIGTERM);
  EXPECT_TRUE(stream.ended());
}

TEST_F(Serve, KilledInAStreamItEndsTheConnectionAndStartsAgain) {
  start(/*drain_s=*/1000);
  TestClient stream = begin_stream(1'000'000);
  const int port = port_;
  kill(child_, SIGKILL);
  EXPECT_EQ(wait_end(), 128 + SIGKILL);
  EXPECT_TRUE(stream.ended());
  start(/*drain_s=*/20, port);
  EXPECT_EQ(port_, port);
  TestClient again = begin_stream(3);
  EXPECT_TRUE(again.read().whole);
}

TEST_F(Serve, APortInUseIsAnError) {
  start(/*drain_s=*/1);
  ServeOptions options;
  options.served_model_name = "fake";
  options.http.port = port_;
  const Status status = serve(options, std::make_unique<FakeSession>(), "{}", [](const std::string&) {});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("Address already in use"), std::string::npos)
      << status.error().message;
}

}  // namespace
}  // namespace quire::server
