// A plain socket that speaks HTTP as badly as a test wants.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::server {

struct TestAnswer {
  int status = 0;                                            // 0: the connection ended without an answer
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // chunks joined
  bool whole = false;                                        // by its length or last chunk
  std::string header(std::string_view name) const;
};

class TestClient {
 public:
  explicit TestClient(int port, const std::string& address = "127.0.0.1", int receive_buffer = 0);
  ~TestClient();
  TestClient(TestClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)), in_(std::move(other.in_)) {}
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send(std::string_view bytes);  // all; false when the other side is gone
  // The next answer of the connection; with `head_only` one without a body. Fails after ten seconds (status
  // 0).
  TestAnswer read(bool head_only = false);
  // Bytes as they come, until `text` is there; false when the connection ends before.
  bool read_until(std::string_view text);
  bool ended();  // waits for the end of the connection: true for an orderly or a reset one, false after ten
                 // seconds
  void half_close();
  void close();
  void reset();  // so that the other side gets a RST
  const std::string& unread() const { return in_; }

  TestAnswer get(const std::string& path, const std::string& headers = "");
  TestAnswer post(const std::string& path, const std::string& body, const std::string& headers = "");

 private:
  bool more();

  int fd_ = -1;
  std::string in_;
};

}  // namespace quire::server
