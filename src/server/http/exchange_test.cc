#include "server/http/exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace quire::server {
namespace {

class ExchangeTest : public testing::Test {
 protected:
  void open(Exchange::Setup setup) {
    setup.connection = 7;
    if (setup.stream_buffer == 0) setup.stream_buffer = 1000;
    exchange_ = std::make_shared<Exchange>(std::move(setup), outbox_);
    responder_ = make_responder(exchange_);
  }
  // The head without what changes, then the rest.
  static std::string body_of(const std::string& bytes) { return bytes.substr(bytes.find("\r\n\r\n") + 4); }

  std::atomic<int> wakes_{0};
  std::shared_ptr<Outbox> outbox_ = std::make_shared<Outbox>([this] { ++wakes_; });
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Responder> responder_;
};

TEST_F(ExchangeTest, AWholeAnswer) {
  open({.headers = {{"x-request-id", "r1"}}});
  responder_->send(
      {.status = 429, .content_type = "text/plain", .body = "wait", .headers = {{"retry-after", "2"}}});
  const Exchange::Taken taken = exchange_->take();
  EXPECT_TRUE(taken.bytes.starts_with("HTTP/1.1 429 Too Many Requests\r\ndate: "));
  for (const char* field :
       {"\r\ncontent-type: text/plain\r\n", "\r\nx-request-id: r1\r\n", "\r\nretry-after: 2\r\n",
        "\r\ncontent-length: 4\r\n", "\r\nconnection: keep-alive\r\n"})
    EXPECT_NE(taken.bytes.find(field), std::string::npos) << field;
  EXPECT_EQ(body_of(taken.bytes), "wait");
  EXPECT_TRUE(taken.complete);
  EXPECT_FALSE(taken.broken);
  EXPECT_TRUE(exchange_->keep_alive());
  EXPECT_EQ(exchange_->status(), 429);
}

TEST_F(ExchangeTest, AHeadersValueCannotEndItsLine) {
  open({});
  responder_->send({.headers = {{"x", "a\r\nevil: 1"}}});
  EXPECT_NE(exchange_->take().bytes.find("\r\nx: aevil: 1\r\n"), std::string::npos);
}

TEST_F(ExchangeTest, AStreamInChunks) {
  open({});
  responder_->start_stream(200, "text/event-stream", {});
  responder_->write("hello");
  Exchange::Taken taken = exchange_->take();
  EXPECT_NE(taken.bytes.find("\r\ntransfer-encoding: chunked\r\n"), std::string::npos);
  EXPECT_EQ(body_of(taken.bytes), "5\r\nhello\r\n");
  EXPECT_FALSE(taken.complete);
  responder_->write("");  // would be the last chunk
  responder_->write(std::string(16, 'x'));
  responder_->finish();
  responder_->write("late");
  taken = exchange_->take();
  EXPECT_EQ(taken.bytes, "10\r\n" + std::string(16, 'x') + "\r\n0\r\n\r\n");
  EXPECT_TRUE(taken.complete);
}

TEST_F(ExchangeTest, AStreamForAnOldClientEndsWithItsConnection) {
  open({.chunked = false});
  responder_->start_stream(200, "text/plain", {});
  responder_->write("raw");
  responder_->finish();
  const Exchange::Taken taken = exchange_->take();
  EXPECT_EQ(body_of(taken.bytes), "raw");
  EXPECT_EQ(taken.bytes.find("transfer-encoding"), std::string::npos);
  EXPECT_FALSE(exchange_->keep_alive());
}

TEST_F(ExchangeTest, HeadLeavesTheBodyOut) {
  open({.head_only = true});
  responder_->send({.body = "12345"});
  const Exchange::Taken taken = exchange_->take();
  EXPECT_NE(taken.bytes.find("\r\ncontent-length: 5\r\n"), std::string::npos);
  EXPECT_EQ(body_of(taken.bytes), "");
  EXPECT_TRUE(taken.complete);
}

TEST_F(ExchangeTest, DroppedWithoutAnAnswerIs500) {
  open({});
  responder_.reset();
  const Exchange::Taken taken = exchange_->take();
  EXPECT_TRUE(taken.bytes.starts_with("HTTP/1.1 500 "));
  EXPECT_TRUE(taken.complete);
}

TEST_F(ExchangeTest, DroppedInAStreamIsBroken) {
  open({});
  responder_->start_stream(200, "text/plain", {});
  responder_.reset();
  const Exchange::Taken taken = exchange_->take();
  EXPECT_TRUE(taken.broken);
  EXPECT_FALSE(taken.complete);
}

TEST_F(ExchangeTest, AReaderTooFarBehindIsGivenUp) {
  open({.stream_buffer = 1000});
  int called = 0;
  responder_->on_close([&] { ++called; });
  responder_->start_stream(200, "text/plain", {});
  const std::size_t head = exchange_->take().bytes.size();
  responder_->write(std::string(600, 'x'));
  EXPECT_FALSE(responder_->closed());  // the head is still on its way, and just fits
  exchange_->written(head);
  exchange_->take();  // on its way: it counts as long as the socket does not take it
  responder_->write(std::string(500, 'x'));
  EXPECT_TRUE(responder_->closed());
  EXPECT_EQ(called, 0);  // never inside a call of the handler
  EXPECT_TRUE(exchange_->take().broken);
  EXPECT_TRUE(exchange_->too_slow());
  exchange_->close();
  exchange_->close();
  EXPECT_EQ(called, 1);
  responder_->write("more");
  EXPECT_EQ(exchange_->take().bytes, "");
}

TEST_F(ExchangeTest, TheCallbackRunsOnceOrNeverAndIsDroppedWithTheAnswer) {
  open({});
  auto held = std::make_shared<int>(0);
  responder_->on_close([held] { ++*held; });
  responder_->send({.body = "x"});
  EXPECT_EQ(held.use_count(), 1);
  exchange_->close();
  EXPECT_EQ(*held, 0);

  open({});
  exchange_->close();
  EXPECT_TRUE(responder_->closed());
  responder_->on_close([held] { ++*held; });  // late: it still hears of it
  EXPECT_EQ(*held, 0);
  for (const auto& call : outbox_->take().calls) call();
  EXPECT_EQ(*held, 1);
}

TEST_F(ExchangeTest, OneWakeUpForManyWrites) {
  open({});
  responder_->start_stream(200, "text/plain", {});
  for (int i = 0; i < 10; ++i) responder_->write("x");
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(outbox_->take().connections, std::vector<std::uint64_t>{7});
  exchange_->take();
  responder_->write("x");
  EXPECT_EQ(wakes_, 2);
}

// A connection that waits for its write to move looks up only when it is told. It was told of the first
// write already, saw only that there is more to write, and must hear that the reader is given up.
TEST_F(ExchangeTest, GivingUpWakesAConnectionThatKnowsOfMoreToWrite) {
  open({.stream_buffer = 1000});
  responder_->start_stream(200, "text/plain", {});
  outbox_->take();
  exchange_->take();  // its write is on its way from here on
  responder_->write("x");
  EXPECT_EQ(outbox_->take().connections.size(), 1U);
  responder_->write("x");
  EXPECT_TRUE(outbox_->take().connections.empty());
  responder_->write(std::string(2000, 'x'));
  ASSERT_TRUE(responder_->closed());
  EXPECT_EQ(outbox_->take().connections.size(), 1U);
}

// A handler on one thread, a connection on another, that leaves somewhere: nothing is lost before, nothing
// hangs.
TEST_F(ExchangeTest, ThreadsMeet) {
  for (int round = 0; round < 50; ++round) {
    open({.stream_buffer = 1 << 20});
    std::atomic<int> closed_calls{0};
    responder_->on_close([&] { ++closed_calls; });
    std::thread handler([responder = std::exchange(responder_, nullptr)]() mutable {
      responder->start_stream(200, "text/plain", {});
      for (int i = 0; i < 200 && !responder->closed(); ++i) responder->write("abc");
      responder->finish();
      responder.reset();
    });
    std::string all;
    while (true) {
      const Exchange::Taken taken = exchange_->take();
      exchange_->written(taken.bytes.size());
      all += taken.bytes;
      if (taken.complete || taken.broken) break;
      if (round % 2 == 1 && all.size() > 600) exchange_->close();
      std::this_thread::yield();
    }
    handler.join();
    if (exchange_->closed()) {
      EXPECT_EQ(closed_calls, 1);
    } else {
      EXPECT_TRUE(all.ends_with("0\r\n\r\n"));
      EXPECT_EQ(closed_calls, 0);
    }
  }
}

}  // namespace
}  // namespace quire::server
