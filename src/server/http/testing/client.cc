#include "server/http/testing/client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "base/text.h"

namespace quire::server {

namespace {

constexpr int kPatienceMs = 10'000;

}  // namespace

std::string TestAnswer::header(std::string_view name) const {
  for (const auto& [field, value] : headers) {
    if (field == name) return value;
  }
  return "";
}

TestClient::TestClient(int port, const std::string& address, int receive_buffer) {
  const bool v6 = address.find(':') != std::string::npos;
  fd_ = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in v4_end{};
  v4_end.sin_family = AF_INET;
  v4_end.sin_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in6 v6_end{};
  v6_end.sin6_family = AF_INET6;
  v6_end.sin6_port = v4_end.sin_port;
  if (v6)
    inet_pton(AF_INET6, address.c_str(), &v6_end.sin6_addr);
  else
    inet_pton(AF_INET, address.c_str(), &v4_end.sin_addr);
  const int status = v6 ? connect(fd_, reinterpret_cast<sockaddr*>(&v6_end), sizeof v6_end)
                        : connect(fd_, reinterpret_cast<sockaddr*>(&v4_end), sizeof v4_end);
  if (status != 0) close();
}

TestClient::~TestClient() { close(); }

void TestClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void TestClient::half_close() { shutdown(fd_, SHUT_WR); }

void TestClient::reset() {
  const linger now{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

bool TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool TestClient::more() {
  pollfd waiting{fd_, POLLIN, 0};
  if (fd_ < 0 || poll(&waiting, 1, kPatienceMs) <= 0) return false;
  char bytes[16384];
  const ssize_t got = recv(fd_, bytes, sizeof bytes, 0);
  if (got <= 0) return false;
  in_.append(bytes, static_cast<std::size_t>(got));
  return true;
}

bool TestClient::read_until(std::string_view text) {
  while (in_.find(text) == std::string::npos) {
    if (!more()) return false;
  }
  return true;
}

bool TestClient::ended() {
  while (true) {
    pollfd waiting{fd_, POLLIN, 0};
    if (poll(&waiting, 1, kPatienceMs) <= 0) return false;
    if (!more()) return true;
  }
}

TestAnswer TestClient::read(bool head_only) {
  TestAnswer answer;
  if (!read_until("\r\n\r\n")) return answer;
  const std::size_t head_end = in_.find("\r\n\r\n");
  const std::string head = in_.substr(0, head_end + 2);
  in_.erase(0, head_end + 4);
  answer.status = std::atoi(head.substr(head.find(' ')).c_str());
  for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
    const std::size_t end = head.find("\r\n", at);
    const std::size_t colon = head.find(": ", at);
    answer.headers.emplace_back(to_lower(head.substr(at, colon - at)),
                                head.substr(colon + 2, end - colon - 2));
    at = end + 2;
  }
  answer.whole = true;
  if (head_only || answer.status == 204 || answer.status == 100) return answer;
  if (answer.header("transfer-encoding") == "chunked") {
    while (true) {
      if (!read_until("\r\n")) return answer.whole = false, answer;
      const std::size_t size = std::strtoul(in_.c_str(), nullptr, 16);
      in_.erase(0, in_.find("\r\n") + 2);
      while (in_.size() < size + 2) {
        if (!more()) return answer.whole = false, answer;
      }
      answer.body.append(in_, 0, size);
      in_.erase(0, size + 2);
      if (size == 0) return answer;
    }
  }
  const std::string length = answer.header("content-length");
  if (length.empty()) {  // until the end
    while (more()) {
    }
    std::swap(answer.body, in_);
    return answer;
  }
  const std::size_t size = std::strtoul(length.c_str(), nullptr, 10);
  while (in_.size() < size) {
    if (!more()) return answer.whole = false, answer;
  }
  answer.body = in_.substr(0, size);
  in_.erase(0, size);
  return answer;
}

TestAnswer TestClient::get(const std::string& path, const std::string& headers) {
  send(fmt::format("GET {} HTTP/1.1\r\nHost: t\r\n{}\r\n", path, headers));
  return read();
}

TestAnswer TestClient::post(const std::string& path, const std::string& body, const std::string& headers) {
  send(fmt::format("POST {} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n{}\r\n{}", path, body.size(),
                   headers, body));
  return read();
}

}  // namespace quire::server
