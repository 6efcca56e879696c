// A server with routes for tests: /health, /echo, /item/{name*}, /drop (no answer) and /hold.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/server.h"
#include "server/http/testing/client.h"
#include "server/testing/soon.h"

namespace quire::server {

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

}  // namespace quire::server
