#include "server/bench/response_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace quire::server::bench {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string_view ResponseReader::header(std::string_view name) const {
  for (const auto& [key, value] : headers_)
    if (key == name) return value;
  return {};
}

bool ResponseReader::keeps_alive() const {
  const std::string connection = to_lower(header("connection"));
  if (connection.find("close") != std::string::npos) return false;
  return !http_1_0_ || connection.find("keep-alive") != std::string::npos;
}

bool ResponseReader::take_line(std::string& line) {
  const std::size_t end = rest_.find("\r\n");
  if (end == std::string::npos) return false;
  line = rest_.substr(0, end);
  rest_.erase(0, end + 2);
  return true;
}

Status ResponseReader::parse_head(std::string_view head) {
  const std::size_t line_end = head.find("\r\n");
  const std::string_view first = head.substr(0, line_end);
  std::uint64_t status = 0;
  if (first.size() < 12 || first.substr(0, 7) != "HTTP/1." || !parse_number(first.substr(9, 3), &status))
    return bad_input(
        fmt::format("the server's answer begins with \"{}\", not with an HTTP/1.1 status", first));
  code_ = static_cast<int>(status);
  http_1_0_ = first[7] == '0';
  headers_.clear();
  std::string_view rest = line_end == std::string_view::npos ? std::string_view() : head.substr(line_end + 2);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find("\r\n"), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 2));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos)
      return bad_input(fmt::format("a header of the server's answer has no colon: \"{}\"", line));
    headers_.emplace_back(to_lower(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
  }
  return choose_body();
}

Status ResponseReader::choose_body() {
  if (code_ >= 100 && code_ < 200) {
    state_ = State::head;  // the real one follows
    return {};
  }
  if (code_ == 204 || code_ == 304) {
    state_ = State::complete;
  } else if (to_lower(header("transfer-encoding")).find("chunked") != std::string::npos) {
    state_ = State::chunk_size;
  } else if (!header("content-length").empty()) {
    if (!parse_number(header("content-length"), &left_))
      return bad_input(fmt::format("the answer's Content-Length is \"{}\"", header("content-length")));
    state_ = left_ == 0 ? State::complete : State::length;
  } else {
    state_ = State::until_end;
  }
  return {};
}

// One move on; `more` false: bytes are missing.
Status ResponseReader::step(std::string& body, bool& more) {
  std::string line;
  more = true;
  switch (state_) {
    case State::head: {
      const std::size_t end = rest_.find("\r\n\r\n");
      if (end == std::string::npos) {
        more = false;
        return rest_.size() > kMostHead
                   ? Status(bad_input(fmt::format("the head of an answer is over {} bytes", kMostHead)))
                   : Status();
      }
      const std::string head = rest_.substr(0, end);
      rest_.erase(0, end + 4);
      return parse_head(head);
    }
    case State::length:
    case State::chunk: {
      const auto taken = static_cast<std::size_t>(std::min<std::uint64_t>(left_, rest_.size()));
      body.append(rest_, 0, taken);
      rest_.erase(0, taken);
      left_ -= taken;
      more = taken > 0;
      if (left_ == 0) state_ = state_ == State::length ? State::complete : State::chunk_end;
      return {};
    }
    case State::chunk_size:
      if (!(more = take_line(line))) return {};
      if (!parse_number(trimmed(line.substr(0, line.find(';'))), &left_, 16))
        return bad_input(fmt::format("a chunk's size is \"{}\"", line));
      state_ = left_ == 0 ? State::trailer : State::chunk;
      return {};
    case State::chunk_end:
      if (!(more = take_line(line))) return {};
      state_ = State::chunk_size;
      return line.empty() ? Status() : Status(bad_input("a chunk is longer than it says"));
    case State::trailer:
      if (!(more = take_line(line))) return {};
      if (line.empty()) state_ = State::complete;
      return {};
    case State::until_end:
      body += rest_;
      rest_.clear();
      more = false;
      return {};
    case State::complete:
      more = false;
      return rest_.empty() ? Status() : Status(bad_input("bytes follow a complete answer"));
  }
  return {};
}

Status ResponseReader::feed(std::string_view bytes, std::string& body) {
  rest_ += bytes;
  for (bool more = true; more;) QUIRE_TRY_STATUS(step(body, more));
  return {};
}

Status ResponseReader::end() {
  if (state_ == State::until_end) state_ = State::complete;
  if (state_ == State::complete) return {};
  return bad_input(has_head() ? "the connection ended in the middle of an answer"
                              : "the connection ended before an answer");
}

}  // namespace quire::server::bench
