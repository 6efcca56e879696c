// Requests and their answers, and the limits that refuse.
#include "server/http/server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/http/testing/server_fixture.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;

// ---- requests and answers -----------------------------------------------------------------------------

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

TEST_F(HttpServerTest, AnEmptyKeyIsRefused) {
  options_.api_keys = {"secret", ""};
  EXPECT_EQ(HttpServer::listen(options_, router_).error().code, Code::bad_input);
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

// ---- limits -------------------------------------------------------------------------------------------

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
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 501},
      {"POST /echo HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415},
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

// Where a request ends is not known when its encoding is not: what follows is no request of the same client.
TEST_F(HttpServerTest, TheBodyOfAnUnknownEncodingIsNoRequest) {
  start();
  for (const char* encoding : {"gzip", "gzip, chunked", "chunked, identity", "xchunked"}) {
    TestClient one = client();
    one.send(std::string("POST /echo HTTP/1.1\r\nTransfer-Encoding: ") + encoding +
             "\r\n\r\nGET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_EQ(one.read().status, 501) << encoding;
    EXPECT_TRUE(one.ended()) << encoding;
    EXPECT_EQ(one.unread(), "") << encoding;
  }
  EXPECT_EQ(server_->stats().requests, 4);
}

TEST_F(HttpServerTest, WhatStandsAroundChunksIsBounded) {
  options_.head_bytes = 2000;
  start();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  TestClient extension = client();
  extension.send(head + "1;" + std::string(100'000, 'x') + "\r\na\r\n0\r\n\r\n");
  EXPECT_EQ(extension.read().status, 431);
  EXPECT_TRUE(extension.ended());
  TestClient trailer = client();
  trailer.send(head + "1\r\na\r\n0\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n");
  EXPECT_EQ(trailer.read().status, 431);
  TestClient fine = client();
  fine.send(head + "1;" + std::string(1000, 'x') + "\r\na\r\n0\r\nX: " + std::string(1000, 'x') + "\r\n\r\n");
  EXPECT_EQ(fine.read().body, "a");
}

TEST_F(HttpServerTest, EmptyLinesBeforeARequestAreNothing) {
  start();
  TestClient one = client();
  std::string lines;
  for (int i = 0; i < 100'000; ++i) lines += "\r\n";
  one.send(lines + "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(one.read().status, 200);
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

}  // namespace
}  // namespace quire::server
