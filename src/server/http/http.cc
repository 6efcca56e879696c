#include "server/http/http.h"

#include <fmt/format.h>

namespace quire::server {

namespace {

std::string_view first_of(const HttpFields& fields, std::string_view name) {
  for (const auto& [field, value] : fields) {
    if (field == name) return value;
  }
  return {};
}

// A JSON string of our own words and of bytes from a request: what is not ASCII becomes '?', so that the
// answer is JSON whatever the client sent.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += byte < 0x20 || byte >= 0x7f ? '?' : c;
    }
  }
  return out + '"';
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const { return first_of(headers, name); }

std::optional<std::string_view> HttpRequest::query_value(std::string_view name) const {
  for (const auto& [field, value] : query) {
    if (field == name) return value;
  }
  return std::nullopt;
}

std::string_view HttpRequest::param(std::string_view name) const { return first_of(params, name); }

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

HttpAnswer error_answer(int status, std::string_view message, std::string_view code) {
  HttpAnswer answer;
  answer.status = status;
  answer.body =
      fmt::format(R"({{"error":{{"message":{},"type":{},"param":null,"code":{}}}}})", quoted(message),
                  quoted(error_type(status)), code.empty() ? "null" : quoted(code));
  return answer;
}

}  // namespace quire::server
