#include "server/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <utility>

#include "base/text.h"
#include "server/http/access.h"
#include "server/http/target.h"

namespace quire::server {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::beast::error_code;
using std::chrono::milliseconds;

namespace {

constexpr std::size_t kFirstRead = 4 << 10;  // what a silent connection costs
constexpr std::size_t kLargestRead = 64 << 10;
constexpr milliseconds kLingerTime{2000};
constexpr std::size_t kLingerBytes = 16 << 20;
constexpr auto kNever = Clock::time_point::max();

HttpAnswer no_refusal() {
  HttpAnswer answer;
  answer.status = 0;
  return answer;
}

HttpAnswer with_retry(HttpAnswer answer, int seconds) {
  answer.headers.emplace_back("retry-after", std::to_string(seconds));
  return answer;
}

HttpAnswer parse_error(const error_code& error, const HttpServerOptions& options) {
  if (error == http::error::header_limit)
    return error_answer(431, fmt::format("the request's head is over {} bytes", options.head_bytes), "");
  if (error == http::error::body_limit)
    return error_answer(413, fmt::format("the request's body is over {} bytes", options.body_bytes), "");
  if (error == http::error::bad_version)
    return error_answer(505, "HTTP/1.0 and HTTP/1.1 are spoken here", "");
  return error_answer(400, fmt::format("this is no HTTP request: {}", error.message()), "");
}

void call_handler(const HttpHandler& handler, HttpRequest request, std::shared_ptr<Responder> responder) {
  try {
    handler(std::move(request), std::move(responder));
  } catch (const std::exception&) {
    // A library ran out of memory or the like. The responder, dropped, says 500.
  }
}

HttpAnswer late(std::string_view what, milliseconds time) {
  return error_answer(
      408, fmt::format("the request's {} did not arrive within {} seconds", what, seconds(time)), "");
}

}  // namespace

Connection::Connection(Hub& hub, net::ip::tcp::socket socket, std::uint64_t id)
    : hub_(hub), socket_(std::move(socket)), timer_(hub.io), id_(id), refusal_(no_refusal()) {
  error_code ignored;
  const auto end = socket_.remote_endpoint(ignored);
  client_ = end.address().is_v6() ? fmt::format("[{}]:{}", end.address().to_string(ignored), end.port())
                                  : fmt::format("{}:{}", end.address().to_string(ignored), end.port());
}

net::awaitable<void> Connection::run(bool too_many) {
  bool goes_on = true;
  if (too_many) {
    begin_request();
    refusal_ = with_retry(
        error_answer(503, fmt::format("all {} connections are in use", hub_.options.connections), "busy"), 1);
    goes_on = co_await refuse();
  }
  while (goes_on) goes_on = co_await serve_one();
  if (linger_ && !ended_) co_await linger();
  end();
}

void Connection::notify() {
  ready_ = true;
  timer_.cancel();
}

void Connection::end() {
  ended_ = true;
  if (exchange_ != nullptr) exchange_->close();
  release_body();
  end_waiting();
  error_code ignored;
  socket_.shutdown(net::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  timer_.cancel();
}

// ---- waiting, reading and writing ------------------------------------------------------------------------

// True when the predicate is; false at the deadline, or when the connection was ended.
template <class Predicate>
net::awaitable<bool> Connection::wait(Clock::time_point deadline, Predicate predicate) {
  while (!predicate()) {
    if (ended_ || Clock::now() >= deadline) co_return false;
    timer_.expires_at(deadline);
    co_await timer_.async_wait(net::as_tuple(net::use_awaitable));
  }
  co_return true;
}

// At most one read at a time; its bytes wait in in_. A client that sends on while its request is handled
// fills in_ up to the size of a head, and the rest stays in the socket.
bool Connection::may_read() const {
  return !reading_ && !gone_ && !ended_ && in_.size() < hub_.options.head_bytes + kFirstRead;
}

void Connection::read_more() {
  if (!may_read()) return;
  reading_ = true;
  if (chunk_.size() < kFirstRead) chunk_.resize(kFirstRead);
  socket_.async_read_some(net::buffer(chunk_),
                          [self = shared_from_this()](const error_code& error, std::size_t size) {
                            self->reading_ = false;
                            self->gone_ = self->gone_ || static_cast<bool>(error);
                            self->in_.append(self->chunk_, 0, size);
                            if (size == self->chunk_.size() && size < kLargestRead)
                              self->chunk_.resize(2 * size);
                            self->timer_.cancel();
                          });
}

net::awaitable<Connection::Got> Connection::more(Clock::time_point deadline) {
  const std::size_t before = in_.size();
  read_more();
  const bool in_time = co_await wait(deadline, [&] { return in_.size() > before || gone_; });
  if (in_.size() > before && !ended_) co_return Got::bytes;
  co_return gone_ || ended_ || in_time ? Got::gone : Got::nothing_in_time;
}

void Connection::write_more() {
  socket_.async_write_some(net::buffer(out_.data() + written_, out_.size() - written_),
                           [self = shared_from_this()](const error_code& error, std::size_t size) {
                             self->written_ += size;
                             self->progress_ = Clock::now();
                             if (!error && !self->ended_ && self->written_ < self->out_.size())
                               return self->write_more();
                             self->write_failed_ = static_cast<bool>(error);
                             self->writing_ = false;
                             self->timer_.cancel();
                           });
}

// False when the client does not take it: broken, too slow, or behind by more than its stream may be.
net::awaitable<bool> Connection::write() {
  written_ = 0;
  writing_ = true;
  progress_ = Clock::now();
  write_more();
  const auto given_up = [this] { return exchange_ != nullptr && exchange_->closed(); };
  while (writing_) {
    const Clock::time_point seen = progress_;
    const bool moved = co_await wait(seen + hub_.options.write_time,
                                     [&] { return !writing_ || progress_ != seen || given_up(); });
    if (!moved && !ended_) ++hub_.counts.slow;
    if (!moved || given_up()) co_return false;
  }
  co_return !write_failed_;
}

// A socket that is closed with unread bytes resets the connection, and the client may lose our answer with
// it.
net::awaitable<void> Connection::linger() {
  error_code ignored;
  socket_.shutdown(net::ip::tcp::socket::shutdown_send, ignored);
  const Clock::time_point deadline = Clock::now() + kLingerTime;
  std::size_t dropped = 0;
  while (dropped < kLingerBytes) {
    in_.clear();
    if (co_await more(deadline) != Got::bytes) co_return;
    dropped += in_.size();
  }
}

// ---- one request ---------------------------------------------------------------------------------------

void Connection::begin_request() {
  parser_.emplace();
  parser_->eager(false);
  parser_->header_limit(static_cast<std::uint32_t>(hub_.options.head_bytes));
  parser_->body_limit(hub_.options.body_bytes);
  setup_ = Exchange::Setup{};
  setup_.connection = id_;
  setup_.keep_alive = false;
  setup_.stream_buffer = hub_.options.stream_buffer;
  setup_.headers = cors_fields(hub_.options.cors_origin);
  access_ = HttpAccess{};
  access_.client = client_;
  unknown_end_ = false;
}

// False: the connection ends.
net::awaitable<bool> Connection::serve_one() {
  begin_request();
  begin_waiting();
  bool has_head = co_await await_request();
  if (has_head) has_head = co_await read_head();
  end_waiting();
  if (!has_head) {
    if (refusal_.status == 0) co_return false;
    co_return co_await refuse();
  }
  take_head();
  if (route()) {
    const bool has_body = co_await read_body();
    if (has_body) {
      handle();
      co_return co_await respond();
    }
  }
  if (refusal_.status == 0) co_return false;
  co_return co_await refuse();
}

void Connection::take_head() {
  ++hub_.counts.requests;
  head_complete_ = Clock::now();
  request_ = make_request();
  setup_.chunked = parser_->get().version() >= 11;
  setup_.head_only = request_.method == "HEAD";
  setup_.keep_alive = parser_->keep_alive() && !hub_.draining;
  setup_.headers.emplace_back("x-request-id", request_.id);
  access_.method = request_.method;
  access_.id = request_.id;
  if (request_.method == "HEAD") request_.method = "GET";
}

// Finds who answers: match_. False with refusal_.
bool Connection::route() {
  const bool options = request_.method == "OPTIONS";
  match_ = {};
  if (!check_head()) return false;
  if (options && request_.target == "*") return true;
  std::optional<Target> target = parse_target(request_.target);
  if (!target)
    return refuse_with(error_answer(400, "the request's target is not a path of printable bytes", ""));
  access_.path = target->path;
  request_.path = std::move(target->path);
  request_.query = std::move(target->query);
  match_ = hub_.router.find(request_.method, request_.path);
  if (match_.allowed.empty()) {
    const std::string hint = hub_.router.hint(request_.path);
    return refuse_with(
        error_answer(404, fmt::format("nothing is at {}{}", request_.path, hint), "unknown_path"));
  }
  if (options) return true;
  if (match_.handler == nullptr) {
    const std::string allow = allow_value(match_.allowed);
    HttpAnswer answer =
        error_answer(405, fmt::format("{} takes {}", request_.path, allow), "method_not_allowed");
    answer.headers.emplace_back("allow", allow);
    return refuse_with(std::move(answer));
  }
  if (match_.access == RouteAccess::keyed && !has_key(request_, hub_.options.api_keys)) {
    HttpAnswer answer =
        error_answer(401, "this needs an API key: send Authorization: Bearer KEY", "invalid_api_key");
    answer.headers.emplace_back("www-authenticate", "Bearer");
    return refuse_with(std::move(answer));
  }
  return true;
}

// For "return": false.
bool Connection::refuse_with(HttpAnswer answer) {
  refusal_ = std::move(answer);
  return false;
}

// The first byte of the next request.
net::awaitable<bool> Connection::await_request() {
  if (!in_.empty()) co_return true;
  if (hub_.draining) co_return false;
  const Got got = co_await more(Clock::now() + hub_.options.idle_time);
  co_return got == Got::bytes;
}

void Connection::parse_more(error_code& error) {
  error = {};
  const std::size_t used = parser_->put(net::const_buffer(in_.data(), in_.size()), error);
  in_.erase(0, used);
}

net::awaitable<bool> Connection::read_head() {
  const Clock::time_point deadline = Clock::now() + hub_.options.head_time;
  while (true) {
    // RFC 9112, 2.2: empty lines before a request line are ignored.
    std::size_t empty = 0;
    while (in_.compare(empty, 2, "\r\n") == 0) empty += 2;
    in_.erase(0, empty);
    error_code error = http::error::need_more;
    if (in_ != "\r") parse_more(error);
    if (parser_->is_header_done()) co_return true;
    if (error && error != http::error::need_more) co_return refuse_with(parse_error(error, hub_.options));
    const Got got = co_await more(deadline);
    if (got == Got::gone) co_return false;
    if (got == Got::nothing_in_time) co_return refuse_with(late("head", hub_.options.head_time));
  }
}

// False with refusal_: the head says something that is not spoken here.
bool Connection::check_head() {
  const auto& message = parser_->get();
  const auto is_not = [&](http::field name, std::string_view spoken) {
    const auto field = message.find(name);
    return field != message.end() && to_lower({field->value().data(), field->value().size()}) != spoken;
  };
  if (is_not(http::field::transfer_encoding, "chunked")) {
    unknown_end_ = true;
    return refuse_with(error_answer(501, "of transfer encodings only chunked is spoken here", ""));
  }
  if (is_not(http::field::content_encoding, "identity"))
    return refuse_with(error_answer(415, "a body is read as it stands: leave Content-Encoding out", ""));
  if (is_not(http::field::expect, "100-continue"))
    return refuse_with(error_answer(417, "of expectations only 100-continue is known here", ""));
  return true;
}

HttpRequest Connection::make_request() {
  HttpRequest request;
  const auto& message = parser_->get();
  const auto view = [](auto text) { return std::string_view(text.data(), text.size()); };
  request.method = view(message.method_string());
  request.target = view(message.target());
  for (const auto& field : message)
    request.headers.emplace_back(to_lower(view(field.name_string())), view(field.value()));
  request.client = client_;
  request.received_s = seconds(head_complete_.time_since_epoch());
  request.id = usable_request_id(request.header("x-request-id"));
  if (request.id.empty()) request.id = fmt::format("{}-{:x}", hub_.request_prefix, hub_.next_request++);
  return request;
}

net::awaitable<bool> Connection::read_body() {
  const auto& message = parser_->get();
  if (message.find(http::field::expect) != message.end() && message.version() >= 11 && !parser_->is_done()) {
    out_ = "HTTP/1.1 100 Continue\r\n\r\n";
    const bool written = co_await write();
    if (!written) co_return false;
  }
  parser_->eager(true);
  const Clock::time_point deadline = Clock::now() + hub_.options.body_time;
  while (!parser_->is_done()) {
    error_code error = http::error::need_more;
    if (!in_.empty()) parse_more(error);
    if (!account_body()) co_return false;
    if (!error) continue;
    if (error != http::error::need_more) co_return refuse_with(parse_error(error, hub_.options));
    // Bytes of the body itself were all taken.
    if (in_.size() >= hub_.options.head_bytes)
      co_return refuse_with(
          error_answer(431,
                       fmt::format("a chunk's extension or the trailer of the body is over {} bytes",
                                   hub_.options.head_bytes),
                       ""));
    const Got got = co_await more(deadline);
    if (got == Got::gone) co_return false;
    if (got == Got::nothing_in_time) co_return refuse_with(late("body", hub_.options.body_time));
  }
  co_return true;
}

bool Connection::account_body() {
  const auto size = static_cast<std::int64_t>(parser_->get().body().size());
  hub_.counts.body_bytes += size - body_held_;
  body_held_ = size;
  if (hub_.counts.body_bytes <= static_cast<std::int64_t>(hub_.options.body_memory)) return true;
  return refuse_with(
      with_retry(error_answer(503, "too many bytes of requests are being read: try again", "busy"), 1));
}

void Connection::release_body() {
  hub_.counts.body_bytes -= body_held_;
  body_held_ = 0;
}

// Answers by itself. The connection goes on only when all of the request was read: its rest is no request.
net::awaitable<bool> Connection::refuse() {
  const bool whole = parser_->is_done() && !unknown_end_;
  setup_.keep_alive = setup_.keep_alive && whole;
  linger_ = !whole;
  release_body();
  exchange_ = std::make_shared<Exchange>(setup_, hub_.outbox);
  exchange_->send(std::exchange(refusal_, no_refusal()));
  co_return co_await respond();
}

void Connection::handle() {
  exchange_ = std::make_shared<Exchange>(setup_, hub_.outbox);
  std::shared_ptr<Responder> responder = make_responder(exchange_);
  request_.params = std::move(match_.params);
  request_.body = std::move(parser_->get().body());
  if (match_.handler == nullptr) {
    responder->send(options_answer(request_, match_.allowed, hub_.options.cors_origin));
    release_body();
  } else if (request_.body.size() <= hub_.options.inline_body) {
    call_handler(*match_.handler, std::move(request_), std::move(responder));
    release_body();
  } else {
    hub_.background.run([&hub = hub_, handler = match_.handler, request = std::move(request_),
                         responder = std::move(responder), held = std::exchange(body_held_, 0)]() mutable {
      call_handler(*handler, std::move(request), std::move(responder));
      hub.counts.body_bytes -= held;
    });
  }
}

// Writes what the exchange has until it ends. A client that leaves meanwhile is noticed by the read.
net::awaitable<bool> Connection::respond() {
  bool whole = false;
  while (!whole) {
    ready_ = false;
    Exchange::Taken taken = exchange_->take();
    if (!taken.bytes.empty()) {
      out_ = std::move(taken.bytes);
      const bool written = co_await write();
      if (!written) break;
      exchange_->written(out_.size());
      continue;
    }
    whole = taken.complete;
    if (whole || taken.broken || gone_ || ended_) break;
    read_more();
    co_await wait(kNever, [&] { return ready_ || gone_ || may_read(); });
  }
  exchange_->close();  // nothing when it is whole
  const bool keeps = whole && exchange_->keep_alive() && !hub_.draining;
  report(whole);
  exchange_.reset();
  co_return keeps;
}

void Connection::report(bool whole) {
  if (exchange_->too_slow()) ++hub_.counts.slow;
  if (!whole) ++hub_.counts.left;
  if (hub_.options.on_answer == nullptr) return;
  access_.status = exchange_->status();
  access_.body_bytes = exchange_->bytes();
  access_.seconds = seconds_since(head_complete_);
  access_.whole = whole;
  hub_.options.on_answer(access_);
}

void Connection::begin_waiting() {
  waiting_since_ = Clock::now();
  waiting_place_ = hub_.waiting.insert(hub_.waiting.end(), this);
}

void Connection::end_waiting() {
  if (waiting_place_.has_value()) hub_.waiting.erase(*waiting_place_);
  waiting_place_.reset();
}

}  // namespace quire::server
