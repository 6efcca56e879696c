// HttpServer: HTTP/1.1 over TCP, for one Router. One I/O thread runs all connections; a second one runs
// handlers of large bodies. TLS is a proxy's job.
//
// Limits refuse in HTTP's words: 408 a request that does not arrive in time, 413 a body, 431 a head, 503 with
// Retry-After more connections or more body bytes at a time than allowed. A limit holds for each connection
// before any handler runs, so memory is bounded by connections x (head + unread output) + body_memory.
//
// A connection keeps at most one request in a handler; what a client pipelines behind it stays in the socket.
// While a handler works, the server watches for the client leaving (Responder::on_close).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/http/router.h"

namespace quire::server {

// One answer that ended, for the log. No body and no header of the client's but its request id.
struct HttpAccess {
  std::string client, method, path, id;
  int status = 0;  // 0: the client left before an answer began
  std::int64_t body_bytes = 0;
  double seconds = 0.0;  // since the head of the request was complete
  bool whole = false;    // the client got all of it
};

struct HttpServerOptions {
  std::string host =
      "127.0.0.1";         // name or address; "::" and "0.0.0.0" for all; "localhost" is both families
  int port = 8080;         // 0: any free one
  int connections = 1024;  // open at a time; the file-descriptor limit may make it less
  std::size_t head_bytes = 32 << 10;
  std::size_t body_bytes = 16 << 20;            // of one request
  std::size_t body_memory = 256u << 20;         // of all requests that are being read or handled
  std::size_t inline_body = 64 << 10;           // handled on the I/O thread up to this
  std::size_t stream_buffer = 1 << 20;          // unread bytes of one answer before its reader is given up
  std::chrono::milliseconds head_time{10'000};  // from the first byte of a request to its whole head
  std::chrono::milliseconds body_time{60'000};
  std::chrono::milliseconds idle_time{75'000};   // between requests
  std::chrono::milliseconds write_time{60'000};  // without the reader taking a byte
  std::vector<std::string> api_keys;  // none: no key needed. Authorization: Bearer KEY, or x-api-key
  std::string cors_origin;            // Access-Control-Allow-Origin: one origin, or "*"; empty: no CORS
  std::function<void(const HttpAccess&)> on_answer;  // on the I/O thread; may be null
};

struct HttpServerStats {
  std::int64_t connections = 0;  // open now
  std::int64_t accepted = 0;     // since the start, as the rest
  std::int64_t refused = 0;      // over the limit of connections
  std::int64_t requests = 0;
  std::int64_t left = 0;        // clients gone before their answer was complete
  std::int64_t slow = 0;        // of these: given up, too far behind or too long without reading
  std::int64_t body_bytes = 0;  // held now
};

class HttpServer {
 public:
  // Binds and listens (SO_REUSEADDR); accepts from start() on. `router` outlives the server.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpServerOptions& options, const Router& router);
  virtual ~HttpServer() = default;  // stop()

  virtual std::vector<std::string> addresses() const = 0;  // "127.0.0.1:8080", "[::1]:8080"
  virtual int port() const = 0;
  virtual int connections_limit() const = 0;  // what the options and the file-descriptor limit allow
  virtual void start() = 0;
  // Closes the listening sockets and idle connections; a connection with a request ends with its answer.
  virtual void drain() = 0;
  // Connections still open (drain() makes it fall to 0).
  virtual HttpServerStats stats() const = 0;
  // Ends everything at once; no handler or callback runs after it returned. Not from the server's threads.
  virtual void stop() = 0;
};

}  // namespace quire::server
