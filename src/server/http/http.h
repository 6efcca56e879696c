// What a handler sees of HTTP: a whole request in, an answer out. No socket, no library type.
//
// Flow: the server (server.h) reads a request whole, within its limits, finds its handler (router.h) and
// calls it. The handler keeps the Responder, from any thread, until the answer is complete.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::server {

// In the order of the message. Names in lower case.
using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;     // "GET"; a HEAD request comes as GET, and its answer goes out without the body
  std::string target;     // as it came: "/v1/models/a%20b?x=1"
  std::string path;       // decoded, without the query: "/v1/models/a b"
  HttpFields query;       // decoded
  HttpFields headers;     // bytes as they came, no control characters
  HttpFields params;      // of the route's pattern: {"model", "a b"}
  std::string body;       // any bytes, perhaps not UTF-8
  std::string id;         // x-request-id: the client's if it is printable and short, else one of ours
  std::string client;     // "127.0.0.1:41234"
  double received_s = 0;  // steady clock, when the head was complete

  // The first of that name (lower case); empty: none.
  std::string_view header(std::string_view name) const;
  std::optional<std::string_view> query_value(std::string_view name) const;
  std::string_view param(std::string_view name) const;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpFields headers = {};  // more: "retry-after", ...
};

// The answer to one request. All calls from any thread, none blocks. Exactly one of: send() once, or
// start_stream(), write() any number of times, finish(). Calls after the end, and after close, do nothing.
//
// Dropped (the last reference gone) without an answer, the client gets 500; dropped in a stream, its
// connection ends without the last chunk, so that it can tell.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void send(HttpAnswer answer) = 0;
  // The head of a stream, out at once: chunked in HTTP/1.1, until the end of the connection in HTTP/1.0.
  virtual void start_stream(int status, const std::string& content_type, HttpFields headers) = 0;
  // The next bytes. A reader who is more than the server's stream_buffer behind is given up: closed.
  virtual void write(std::string_view bytes) = 0;
  virtual void finish() = 0;
  // The client left, or was given up, before the answer was complete. What it asked for is to be cancelled.
  virtual bool closed() const = 0;
  // Called once when closed() becomes true, on the server's thread and never inside this call; at most one
  // callback. Not called any more after the answer is complete; dropped with what it holds then.
  virtual void on_close(std::function<void()> callback) = 0;
};

// Called on the server's I/O thread, for bodies over HttpServerOptions::inline_body on its parsing thread: so
// from two threads at a time. Must not block: work that takes over a millisecond belongs elsewhere.
using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<Responder> responder)>;

// The type that OpenAI's error objects have at a status: invalid_request_error, rate_limit_error, ...
std::string_view error_type(int status);
// {"error":{"message","type","param":null,"code"}}, for what is refused before a request's fields are read.
// `code` empty: null.
HttpAnswer error_answer(int status, std::string_view message, std::string_view code);

}  // namespace quire::server
