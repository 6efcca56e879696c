#include "server/http/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace quire::server {

namespace {

// RFC 9110, 5.6.7; the names are English whatever the locale is.
std::string http_date() {
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[static_cast<std::size_t>(utc.tm_wday)],
                     utc.tm_mday, kMonths[static_cast<std::size_t>(utc.tm_mon)], utc.tm_year + 1900,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

// A value that came from a request cannot end its line.
void add_field(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ");
  std::copy_if(value.begin(), value.end(), std::back_inserter(head),
               [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
  head.append("\r\n");
}

class ExchangeResponder final : public Responder {
 public:
  explicit ExchangeResponder(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~ExchangeResponder() override { exchange_->abandon(); }
  void send(HttpAnswer answer) override { exchange_->send(std::move(answer)); }
  void start_stream(int status, const std::string& content_type, HttpFields headers) override {
    exchange_->start_stream(status, content_type, headers);
  }
  void write(std::string_view bytes) override { exchange_->write(bytes); }
  void finish() override { exchange_->finish(); }
  bool closed() const override { return exchange_->closed(); }
  void on_close(std::function<void()> callback) override { exchange_->on_close(std::move(callback)); }

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace

std::shared_ptr<Responder> make_responder(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<ExchangeResponder>(std::move(exchange));
}

std::string_view status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

// ---- Outbox --------------------------------------------------------------------------------------------

void Outbox::wake_once() {
  if (std::exchange(woken_, true)) return;
  wake_();
}

void Outbox::push(std::uint64_t connection) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  mail_.connections.push_back(connection);
  wake_once();
}

void Outbox::call(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  mail_.calls.push_back(std::move(function));
  wake_once();
}

Outbox::Mail Outbox::take() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  return std::exchange(mail_, {});
}

void Outbox::close() {
  Mail dropped;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  std::swap(dropped, mail_);
}

// ---- Exchange: the handler's side ------------------------------------------------------------------------

Exchange::Exchange(Setup setup, std::shared_ptr<Outbox> outbox)
    : setup_(std::move(setup)), outbox_(std::move(outbox)) {}

void Exchange::tell() {
  if (std::exchange(told_, true)) return;
  outbox_->push(setup_.connection);
}

void Exchange::add_head(int status, const std::string& content_type, const HttpFields& headers,
                        std::string_view framing) {
  status_ = status;
  out_ = fmt::format("HTTP/1.1 {} {}\r\n", status, status_text(status));
  add_field(out_, "date", http_date());
  add_field(out_, "server", "quire");
  if (!content_type.empty()) add_field(out_, "content-type", content_type);
  for (const auto& [name, value] : setup_.headers) add_field(out_, name, value);
  for (const auto& [name, value] : headers) add_field(out_, name, value);
  out_.append(framing);
  add_field(out_, "connection", keep_alive_ ? "keep-alive" : "close");
  out_.append("\r\n");
}

// The callback goes out with the lock, and is destroyed without it: it may hold what calls us.
void Exchange::end(State state, std::function<void()>& callback) {
  state_ = state;
  std::swap(callback, callback_);
  tell();
}

void Exchange::send(HttpAnswer answer) {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  QUIRE_CHECK(state_ != State::streaming, "send() of {} in a stream", answer.status);
  if (state_ != State::empty) return;
  keep_alive_ = setup_.keep_alive;
  const bool no_body = answer.status == 204 || answer.status == 304;
  add_head(answer.status, no_body ? "" : answer.content_type, answer.headers,
           no_body ? "" : fmt::format("content-length: {}\r\n", answer.body.size()));
  if (!no_body && !setup_.head_only) {
    out_.append(answer.body);
    body_bytes_ = static_cast<std::int64_t>(answer.body.size());
  }
  end(State::complete, dropped);
}

void Exchange::start_stream(int status, const std::string& content_type, const HttpFields& headers) {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  if (closed_ || state_ != State::empty) return;
  keep_alive_ = setup_.keep_alive && (setup_.chunked || setup_.head_only);
  add_head(status, content_type, headers, setup_.chunked ? "transfer-encoding: chunked\r\n" : "");
  if (setup_.head_only) return end(State::complete, dropped);
  state_ = State::streaming;
  tell();
}

void Exchange::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (closed_ || state_ != State::streaming || bytes.empty()) return;
  if (setup_.chunked) {
    fmt::format_to(std::back_inserter(out_), "{:x}\r\n", bytes.size());
    out_.append(bytes).append("\r\n");
  } else {
    out_.append(bytes);
  }
  body_bytes_ += static_cast<std::int64_t>(bytes.size());
  give_up_if_behind();
  tell();
}

// A reader who is so far behind costs memory for as long as it likes: it goes, the others do not notice.
void Exchange::give_up_if_behind() {
  if (out_.size() + in_flight_ <= setup_.stream_buffer) return;
  closed_ = true;
  too_slow_ = true;
  out_ = {};
  // What the connection was told before, it may have looked at while there was only more to write: without
  // this it would sleep in its write until the write's own time is up.
  told_ = false;
}

void Exchange::finish() {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  if (closed_ || state_ != State::streaming) return;
  if (setup_.chunked) out_.append("0\r\n\r\n");
  end(State::complete, dropped);
}

void Exchange::abandon() {
  std::function<void()> dropped;
  std::unique_lock lock(mutex_);
  if (state_ == State::empty && !closed_) {
    lock.unlock();
    return send(error_answer(500, "the request was dropped without an answer: a bug of this server", ""));
  }
  if (state_ == State::streaming) end(State::broken, dropped);
}

bool Exchange::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void Exchange::on_close(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::complete || state_ == State::broken) return;
  if (close_ran_) return outbox_->call(std::move(callback));
  callback_ = std::move(callback);
}

// ---- Exchange: the connection's side ---------------------------------------------------------------------

Exchange::Taken Exchange::take() {
  const std::lock_guard lock(mutex_);
  told_ = false;
  Taken taken;
  taken.bytes = std::exchange(out_, {});
  in_flight_ += taken.bytes.size();
  taken.complete = state_ == State::complete && !closed_;
  taken.broken = state_ == State::broken || closed_;
  return taken;
}

void Exchange::written(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  in_flight_ -= bytes;
}

void Exchange::close() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::complete || state_ == State::broken) return;
    closed_ = true;
    close_ran_ = true;
    out_ = {};
    std::swap(callback, callback_);
  }
  if (callback) callback();
}

bool Exchange::keep_alive() const {
  const std::lock_guard lock(mutex_);
  return keep_alive_ && state_ == State::complete;
}

int Exchange::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::int64_t Exchange::bytes() const {
  const std::lock_guard lock(mutex_);
  return body_bytes_;
}

bool Exchange::too_slow() const {
  const std::lock_guard lock(mutex_);
  return too_slow_;
}

}  // namespace quire::server
