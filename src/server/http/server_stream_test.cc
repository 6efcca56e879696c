// Answers that are streams, clients that leave, and the end of the server itself.
#include "server/http/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/testing/server_fixture.h"

namespace quire::server {
namespace {

// ---- streams and leaving ------------------------------------------------------------------------------

TEST_F(HttpServerTest, AStreamComesAsItIsWritten) {
  start();
  TestClient one = client();
  one.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  const std::shared_ptr<Responder> responder = held(0);
  responder->start_stream(200, "text/event-stream", {{"cache-control", "no-cache"}});
  ASSERT_TRUE(one.read_until("\r\n\r\n"));
  responder->write("data: 1\n\n");
  ASSERT_TRUE(one.read_until("data: 1\n\n"));
  responder->write("data: 2\n\n");
  responder->finish();
  const TestAnswer answer = one.read();
  EXPECT_EQ(answer.body, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(answer.header("cache-control"), "no-cache");
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(one.get("/health").status, 200);  // the connection goes on
  EXPECT_EQ(closed_, 0);
}

TEST_F(HttpServerTest, AClientThatLeavesIsNoticed) {
  start();
  for (const char* how :
       {"close", "reset", "half close", "close in a stream", "close with more requests sent"}) {
    SCOPED_TRACE(how);
    const int before = closed_;
    TestClient one = client();
    one.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
    const std::shared_ptr<Responder> responder = held(static_cast<std::size_t>(before));
    EXPECT_FALSE(responder->closed());
    const std::string_view way = how;
    if (way == "close in a stream") {
      responder->start_stream(200, "text/plain", {});
      responder->write("x");
      ASSERT_TRUE(one.read_until("x"));
    }
    if (way == "close with more requests sent") one.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    if (way == "reset")
      one.reset();
    else if (way == "half close")
      one.half_close();
    else
      one.close();
    EXPECT_TRUE(soon([&] { return closed_ == before + 1; }));
    EXPECT_TRUE(responder->closed());
    responder->send({.body = "into the void"});
  }
  EXPECT_TRUE(soon([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().left, 5);
  expect_alive();
}

TEST_F(HttpServerTest, ClientsThatLeaveEarlierLeaveNothingBehind) {
  start();
  for (const char* bytes :
       {"", "G", "GET /health HTTP/1.1\r\n", "POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nab"}) {
    client().send(bytes);  // and closes
    TestClient rude = client();
    rude.send(bytes);
    rude.reset();
  }
  EXPECT_TRUE(soon([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().body_bytes, 0);
  EXPECT_EQ(server_->stats().left, 0);
  // One who said all and only listens now still gets an answer that is there at once.
  TestClient listener = client();
  listener.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  listener.half_close();
  EXPECT_EQ(listener.read().status, 200);
}

TEST_F(HttpServerTest, ASlowReaderIsGivenUpAndStallsNobody) {
  options_.stream_buffer = 100'000;
  start();
  TestClient slow = client(/*receive_buffer=*/4096);
  slow.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  TestClient fast = client();
  fast.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  held(1);
  const std::string piece(1000, 'x');
  for (int i = 0; i < 2; ++i) held(static_cast<std::size_t>(i))->start_stream(200, "text/plain", {});
  int written = 0;
  for (; !held(0)->closed() && written < 100'000; ++written) {
    held(0)->write(piece);
    if (written % 10 == 0) held(1)->write("y");
  }
  ASSERT_TRUE(held(0)->closed());
  EXPECT_TRUE(soon([&] { return closed_ == 1; }));
  held(1)->finish();
  const TestAnswer answer = fast.read();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body, std::string(static_cast<std::size_t>((written + 9) / 10), 'y'));
  EXPECT_EQ(server_->stats().slow, 1);
  EXPECT_TRUE(slow.ended());
}

TEST_F(HttpServerTest, AReaderThatStopsIsGivenUpInTime) {
  options_.write_time = std::chrono::milliseconds(100);
  options_.stream_buffer = 64 << 20;
  start();
  TestClient stopped = client(/*receive_buffer=*/4096);
  stopped.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  held(0)->start_stream(200, "text/plain", {});
  held(0)->write(std::string(8 << 20, 'x'));
  EXPECT_TRUE(soon([&] { return closed_ == 1; }));
  EXPECT_GE(server_->stats().slow, 1);
}

// ---- the end ------------------------------------------------------------------------------------------

TEST_F(HttpServerTest, DrainEndsIdleConnectionsAndLetsAnswersEnd) {
  start();
  TestClient idle = client();
  EXPECT_EQ(idle.get("/health").status, 200);
  TestClient busy = client();
  busy.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  held(0)->start_stream(200, "text/plain", {});
  server_->drain();
  EXPECT_TRUE(idle.ended());
  EXPECT_FALSE(client().connected());
  held(0)->write("still");
  held(0)->finish();
  EXPECT_EQ(busy.read().body, "still");
  EXPECT_TRUE(busy.ended());
  EXPECT_TRUE(soon([&] { return server_->stats().connections == 0; }));
}

TEST_F(HttpServerTest, StopEndsEverything) {
  start();
  TestClient busy = client();
  busy.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  held(0)->start_stream(200, "text/plain", {});
  const int port = server_->port();
  server_->stop();
  EXPECT_EQ(closed_, 1);
  EXPECT_TRUE(busy.ended());
  held(0)->write("after");
  server_.reset();
  held(0)->finish();  // a handler may outlive the server
  options_.port = port;
  start();  // the port is free at once, though a connection of it was ended by us
  expect_alive();
}

TEST_F(HttpServerTest, AnswersAreReported) {
  std::vector<HttpAccess> lines;
  std::atomic<int> count{0};
  options_.on_answer = [&](const HttpAccess& line) {
    lines.push_back(line);
    ++count;
  };
  start();
  TestClient one = client();
  one.post("/echo", "four", "X-Request-Id: q\r\n");
  one.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  held(0);
  one.close();
  ASSERT_TRUE(soon([&] { return count == 2; }));
  server_->stop();
  EXPECT_EQ(lines[0].path, "/echo");
  EXPECT_EQ(lines[0].id, "q");
  EXPECT_EQ(lines[0].status, 200);
  EXPECT_EQ(lines[0].body_bytes, 4);
  EXPECT_TRUE(lines[0].whole);
  EXPECT_FALSE(lines[1].whole);
  EXPECT_EQ(lines[1].status, 0);
}

}  // namespace
}  // namespace quire::server
