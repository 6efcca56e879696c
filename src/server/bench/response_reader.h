// Reads one HTTP/1.1 response from bytes as they come: head, then the body by Content-Length, in chunks, or
// up to the end of the connection. Bounded: a head over kMostHead is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace quire::server::bench {

class ResponseReader {
 public:
  static constexpr std::size_t kMostHead = 64 << 10;

  // Takes the next bytes and appends what is of the body to `body`. Bytes behind the response are an error.
  Status feed(std::string_view bytes, std::string& body);
  // The connection has ended; an error when the response was not complete.
  Status end();

  bool has_head() const { return state_ != State::head; }
  bool complete() const { return state_ == State::complete; }
  int status() const { return code_; }
  // The value of a header, its name in lower case; empty: none.
  std::string_view header(std::string_view name) const;
  // Whether the connection can carry another request.
  bool keeps_alive() const;

 private:
  enum class State : std::uint8_t {
    head,
    length,
    chunk_size,
    chunk,
    chunk_end,
    trailer,
    until_end,
    complete
  };
  Status parse_head(std::string_view head);
  Status choose_body();
  // The next line of rest_ without its end; false: not there yet.
  bool take_line(std::string& line);
  Status step(std::string& body, bool& more);

  State state_ = State::head;
  std::string rest_;
  int code_ = 0;
  bool http_1_0_ = false;
  std::vector<std::pair<std::string, std::string>> headers_;
  std::uint64_t left_ = 0;  // bytes of the body or of the chunk
};

}  // namespace quire::server::bench
