// Exchange: one request's answer on its way from a handler (any thread) to a connection (the I/O thread), as
// bytes of HTTP/1.1. The connection takes what is there and writes it; the handler never waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http.h"

namespace quire::server {

// The way from any thread to the I/O thread: which connections have something to take. One wake-up for all
// that happened since the last.
class Outbox {
 public:
  // `wake`: makes the I/O thread call take() soon; any thread calls it.
  explicit Outbox(std::function<void()> wake) : wake_(std::move(wake)) {}
  void push(std::uint64_t connection);
  void call(std::function<void()> function);  // on the I/O thread
  struct Mail {
    std::vector<std::uint64_t> connections;
    std::vector<std::function<void()>> calls;
  };
  Mail take();
  void close();  // nothing is delivered any more; what waits is dropped

 private:
  void wake_once();  // REQUIRES the lock

  std::mutex mutex_;
  std::function<void()> wake_;
  Mail mail_;
  bool woken_ = false;
  bool closed_ = false;
};

class Exchange {
 public:
  struct Setup {
    std::uint64_t connection = 0;
    bool chunked = true;     // the client knows chunks (HTTP/1.1)
    bool head_only = false;  // HEAD: the answer's body is left out
    bool keep_alive = true;  // the connection may stay open afterwards
    std::size_t stream_buffer = 0;
    HttpFields headers = {};  // of every answer: x-request-id, CORS
  };
  Exchange(Setup setup, std::shared_ptr<Outbox> outbox);

  // ---- the handler's side, any thread; as in Responder
  void send(HttpAnswer answer);
  void start_stream(int status, const std::string& content_type, const HttpFields& headers);
  void write(std::string_view bytes);
  void finish();
  void abandon();  // the handler dropped it
  bool closed() const;
  void on_close(std::function<void()> callback);

  // ---- the connection's side, the I/O thread
  struct Taken {
    std::string bytes;      // to write now
    bool complete = false;  // that is the end of the answer
    bool broken = false;    // no more will come, and the answer is not whole: end the connection
  };
  Taken take();
  void written(std::size_t bytes);  // of those taken
  // The client left or is given up. Runs the callback; nothing if the answer is complete.
  void close();
  bool keep_alive() const;     // after the answer: whether its head said so
  int status() const;          // of the answer; 0 before its head
  std::int64_t bytes() const;  // of the body, so far
  bool too_slow() const;       // given up, since its reader is too far behind

 private:
  enum class State : std::uint8_t { empty, streaming, complete, broken };
  void add_head(int status, const std::string& content_type, const HttpFields& headers,
                std::string_view framing);
  void end(State state, std::function<void()>& callback);
  void give_up_if_behind();
  void tell();

  const Setup setup_;
  const std::shared_ptr<Outbox> outbox_;
  mutable std::mutex mutex_;
  State state_ = State::empty;
  bool closed_ = false;
  bool close_ran_ = false;  // else closed_ is for the connection to notice, which then calls close()
  bool too_slow_ = false;
  bool keep_alive_ = false;
  bool told_ = false;  // the connection knows that there is something
  int status_ = 0;
  std::int64_t body_bytes_ = 0;
  std::size_t in_flight_ = 0;  // taken and not yet written
  std::string out_;
  std::function<void()> callback_;
};

// What the handler holds.
std::shared_ptr<Responder> make_responder(std::shared_ptr<Exchange> exchange);

std::string_view status_text(int status);

}  // namespace quire::server
