#include "server/http/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "server/http/testing/client.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Waits for what another thread makes true.
template <class Predicate>
bool soon(Predicate predicate) {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(20);
  while (!predicate()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// /hold keeps its Responder for the test to answer, in the order of arrival.
class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.port = 0;
    const auto add = [this](const char* method, const char* path, RouteAccess access, HttpHandler handler) {
      router_.add(method, path, access, std::move(handler));
    };
    add("GET", "/health", RouteAccess::open,
        [](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
          responder->send({.body = "\"ok\""});
        });
    add("POST", "/echo", RouteAccess::keyed, [this](const HttpRequest& request, const auto& responder) {
      {
        const std::lock_guard lock(mutex_);
        last_ = request;
        handler_threads_[std::this_thread::get_id()]++;
      }
      responder->send({.content_type = "text/plain", .body = request.body});
    });
    add("GET", "/item/{name*}", RouteAccess::keyed, [](const HttpRequest& request, const auto& responder) {
      responder->send({.body = std::string(request.param("name"))});
    });
    add("GET", "/hold", RouteAccess::keyed,
        [this](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
          responder->on_close([this] { ++closed_; });
          const std::lock_guard lock(mutex_);
          held_.push_back(responder);
        });
    add("GET", "/drop", RouteAccess::keyed, [](const HttpRequest&, const std::shared_ptr<Responder>&) {});
  }
  void TearDown() override {
    if (server_ != nullptr) server_->stop();
  }
  void start() {
    Result<std::unique_ptr<HttpServer>> server = HttpServer::listen(options_, router_);
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(*server);
    server_->start();
  }
  TestClient client(int receive_buffer = 0) {
    return TestClient(server_->port(), "127.0.0.1", receive_buffer);
  }
  std::shared_ptr<Responder> held(std::size_t index) {
    EXPECT_TRUE(soon([&] {
      const std::lock_guard lock(mutex_);
      return held_.size() > index;
    }));
    const std::lock_guard lock(mutex_);
    return held_.at(index);
  }
  void expect_alive() {
    TestClient other = client();
    EXPECT_EQ(other.get("/health").body, "\"ok\"");
  }

  HttpServerOptions options_;
  Router router_;
  std::mutex mutex_;
  HttpRequest last_;
  std::map<std::thread::id, int> handler_threads_;
  std::vector<std::shared_ptr<Responder>> held_;
  std::atomic<int> closed_{0};
  std::unique_ptr<HttpServer> server_;
};

// ---- requests and answers
// ----------------------------------------------------------------------------------

TEST_F(HttpServerTest, OneConnectionTakesManyRequests) {
  start();
  TestClient one = client();
  EXPECT_EQ(one.get("/health").body, "\"ok\"");
  const TestAnswer echo = one.post("/echo?a=b", "body bytes", "X-Request-Id: mine\r\nX-Two: Value \r\n");
  EXPECT_EQ(echo.status, 200);
  EXPECT_EQ(echo.body, "body bytes");
  EXPECT_EQ(echo.header("x-request-id"), "mine");
  EXPECT_EQ(last_.query_value("a"), "b");
  EXPECT_EQ(last_.header("x-two"), "Value");
  EXPECT_TRUE(last_.client.starts_with("127.0.0.1:"));
  EXPECT_EQ(one.get("/item/a%2Fb/c").body, "a/b/c");
  EXPECT_EQ(one.get("/drop").status, 500);
  const std::string first = one.get("/health").header("x-request-id");
  EXPECT_TRUE(first.starts_with("req-"));
  EXPECT_NE(one.get("/health").header("x-request-id"), first);
  EXPECT_EQ(server_->stats().accepted, 1);
  EXPECT_EQ(server_->stats().requests, 6);
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  TestClient one = client();
  std::string requests;
  for (int i = 0; i < 50; ++i)
    requests += "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\n" + std::to_string(100 + i);
  ASSERT_TRUE(one.send(requests));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(one.read().body, std::to_string(100 + i));
}

TEST_F(HttpServerTest, ARequestMayComeByteByByte) {
  start();
  TestClient one = client();
  const std::string request =
      "\r\nPOST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
  for (const char c : request) ASSERT_TRUE(one.send(std::string_view(&c, 1)));
  EXPECT_EQ(one.read().body, "abcde");
  EXPECT_EQ(one.get("/health").status, 200);
}

TEST_F(HttpServerTest, HeadOptionsAndWhatIsNotThere) {
  start();
  TestClient one = client();
  one.send("HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n");
  const TestAnswer head = one.read(/*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), "4");
  one.send("OPTIONS /health HTTP/1.1\r\nHost: t\r\n\r\n");
  const TestAnswer options = one.read();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.header("allow"), "GET, HEAD, OPTIONS");
  one.send("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(one.read().status, 204);
  const TestAnswer wrong = one.get("/echo");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST, OPTIONS");
  const TestAnswer unknown = one.get("/healht");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_NE(unknown.body.find("did you mean /health"), std::string::npos) << unknown.body;
  one.send("BREW /echo HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(one.read().status, 405);
  EXPECT_EQ(one.get("/%zz").status, 400);
}

TEST_F(HttpServerTest, AnOldClientGetsItsAnswerAndTheEnd) {
  start();
  TestClient one = client();
  one.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(one.read().body, "\"ok\"");
  EXPECT_TRUE(one.ended());
  TestClient two = client();
  two.send("GET /hold HTTP/1.0\r\n\r\n");
  const std::shared_ptr<Responder> responder = held(0);
  responder->start_stream(200, "text/plain", {});
  responder->write("raw");
  responder->finish();
  const TestAnswer answer = two.read();
  EXPECT_EQ(answer.body, "raw");
  EXPECT_EQ(answer.header("connection"), "close");
}

TEST_F(HttpServerTest, ContinueIsSaidBeforeTheBody) {
  start();
  TestClient one = client();
  one.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(one.read().status, 100);
  one.send("hi");
  EXPECT_EQ(one.read().body, "hi");
  one.send("POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(one.read().status, 404);
  EXPECT_TRUE(one.ended());  // its body may come or not: the connection cannot go on
}

TEST_F(HttpServerTest, KeysAndOrigins) {
  options_.api_keys = {"secret"};
  options_.cors_origin = "https://page";
  start();
  TestClient one = client();
  EXPECT_EQ(one.get("/health").status, 200);
  const TestAnswer refused = one.get("/item/x");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("www-authenticate"), "Bearer");
  EXPECT_EQ(refused.header("access-control-allow-origin"), "https://page");
  EXPECT_EQ(one.get("/item/x", "Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(one.get("/item/x", "Authorization: Bearer secret\r\n").body, "x");
  one.send(
      "OPTIONS /echo HTTP/1.1\r\nHost: t\r\nOrigin: https://page\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization\r\n\r\n");
  const TestAnswer preflight = one.read();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("access-control-allow-headers"), "authorization");
}

TEST_F(HttpServerTest, BothFamiliesOfLocalhost) {
  options_.host = "localhost";
  start();
  for (const std::string& address : server_->addresses()) {
    TestClient one(server_->port(), address.starts_with('[') ? "::1" : "127.0.0.1");
    EXPECT_EQ(one.get("/health").status, 200) << address;
  }
  options_.host = "no host of that name";
  EXPECT_EQ(HttpServer::listen(options_, router_).error().code, Code::bad_input);
  options_.host = "127.0.0.1";
  options_.port = server_->port();
  const Result<std::unique_ptr<HttpServer>> second = HttpServer::listen(options_, router_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("--port"), std::string::npos) << second.error().message;
}

// ---- limits
// --------------------------------------------------------------------------------------------------

TEST_F(HttpServerTest, LargeHeadsAndBodiesAreRefused) {
  options_.head_bytes = 2000;
  options_.body_bytes = 5000;
  start();
  TestClient head = client();
  head.send("GET /health HTTP/1.1\r\nHost: t\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n");
  EXPECT_EQ(head.read().status, 431);
  EXPECT_TRUE(head.ended());
  EXPECT_EQ(client().post("/echo", std::string(5000, 'x')).body.size(), 5000u);
  TestClient body = client();
  const TestAnswer refused = body.post("/echo", std::string(5'000'000, 'x'));
  EXPECT_EQ(refused.status, 413);
  EXPECT_TRUE(refused.whole);
  TestClient chunked = client();
  chunked.send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 100; ++i) chunked.send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(chunked.read().status, 413);
  expect_alive();
  EXPECT_EQ(server_->stats().body_bytes, 0);
}

TEST_F(HttpServerTest, BodiesTogetherAreBounded) {
  options_.body_memory = 3000;
  start();
  TestClient slow = client();
  slow.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2500\r\n\r\n" + std::string(2400, 'x'));
  ASSERT_TRUE(soon([&] { return server_->stats().body_bytes == 2400; }));
  const TestAnswer refused = client().post("/echo", std::string(700, 'x'));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  slow.send(std::string(100, 'x'));
  EXPECT_EQ(slow.read().status, 200);
  EXPECT_EQ(client().post("/echo", std::string(700, 'x')).status, 200);
}

TEST_F(HttpServerTest, LargeBodiesAreHandledOnTheirOwnThread) {
  options_.inline_body = 100;
  start();
  EXPECT_EQ(client().post("/echo", std::string(101, 'a')).body, std::string(101, 'a'));
  EXPECT_EQ(client().post("/echo", std::string(100, 'b')).body, std::string(100, 'b'));
  EXPECT_EQ(handler_threads_.size(), 2u);
  EXPECT_TRUE(soon([&] { return server_->stats().body_bytes == 0; }));
}

TEST_F(HttpServerTest, WhatIsNotHttpIsRefused) {
  start();
  const std::pair<const char*, int> cases[] = {
      {"hello\r\n\r\n", 400},
      {"GET /health HTTP/3.0\r\n\r\n", 505},
      {"GET /health HTTP/1.1\r\nHo st: x\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nX: a\x01\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"GET /health HTTP/1.1\r\nExpect: tea\r\n\r\n", 417},
      {"\x16\x03\x01\x02\r\n\r\n", 400},
  };
  for (const auto& [bytes, status] : cases) {
    TestClient one = client();
    one.send(bytes);
    EXPECT_EQ(one.read().status, status) << bytes;
  }
  expect_alive();
}

TEST_F(HttpServerTest, RequestsThatDoNotArriveEndInTime) {
  options_.head_time = milliseconds(60);
  options_.body_time = milliseconds(60);
  options_.idle_time = milliseconds(60);
  start();
  TestClient silent = client();
  TestClient head = client();
  head.send("GET /health HTTP/1.1\r\nHo");
  TestClient body = client();
  body.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(head.read().status, 408);
  EXPECT_EQ(body.read().status, 408);
  EXPECT_TRUE(silent.ended());
  EXPECT_EQ(silent.unread(), "");
  // Bytes one by one do not buy time: the limit is for the whole.
  TestClient loris = client();
  const Clock::time_point begin = Clock::now();
  while (loris.send("X") && Clock::now() - begin < std::chrono::seconds(10))
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(HttpServerTest, ConnectionsThatSayNothingKeepNobodyOut) {
  options_.connections = 20;
  start();
  std::vector<TestClient> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(client());
  ASSERT_TRUE(soon([&] { return server_->stats().connections == 20; }));
  std::this_thread::sleep_for(milliseconds(550));
  for (int i = 0; i < 5; ++i) expect_alive();
  EXPECT_TRUE(silent.front().ended());
  EXPECT_EQ(server_->stats().refused, 0);
}

TEST_F(HttpServerTest, ConnectionsThatAreUsedAreRefusedOverTheLimit) {
  options_.connections = 3;
  start();
  std::vector<TestClient> busy;
  for (int i = 0; i < 3; ++i) {
    busy.push_back(client());
    busy.back().send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
    held(static_cast<std::size_t>(i));
  }
  TestClient one_more = client();
  const TestAnswer refused = one_more.get("/health");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  held(0)->send({.body = "1"});
  EXPECT_EQ(busy[0].read().body, "1");
  busy[0].close();
  ASSERT_TRUE(soon([&] { return server_->stats().connections == 2; }));
  expect_alive();
}

TEST_F(HttpServerTest, AThousandConnectionsThatOnlyConnect) {
  start();
  std::vector<TestClient> many;
  for (int i = 0; i < 1000; ++i) {
    many.push_back(client());
    ASSERT_TRUE(many.back().connected()) << i;
  }
  expect_alive();
  EXPECT_EQ(many[500].get("/health").status, 200);
  many.clear();
  EXPECT_TRUE(soon([&] { return server_->stats().connections == 0; }));
}

// ---- streams and leaving
// -------------------------------------------------------------------------------------

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
  options_.write_time = milliseconds(100);
  options_.stream_buffer = 64 << 20;
  start();
  TestClient stopped = client(/*receive_buffer=*/4096);
  stopped.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  held(0)->start_stream(200, "text/plain", {});
  held(0)->write(std::string(8 << 20, 'x'));
  EXPECT_TRUE(soon([&] { return closed_ == 1; }));
  EXPECT_GE(server_->stats().slow, 1);
}

// ---- the end
// ---------------------------------------------------------------------------------------------------

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
