// ApiError: what a client did wrong, or what this server cannot do now, in the form of OpenAI's error
// objects.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace quire::server::api {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;           // the field, as a path: "messages[1].content"; empty: null
  std::string code;            // "invalid_type", "invalid_value", "model_not_found", ...; empty: null
  double retry_after_s = 0.0;  // 0: none
};

// No value: all is well.
using Problem = std::optional<ApiError>;

inline ApiError invalid_type(std::string param, std::string message) {
  return {400, std::move(message), std::move(param), "invalid_type", 0.0};
}
inline ApiError invalid_value(std::string param, std::string message) {
  return {400, std::move(message), std::move(param), "invalid_value", 0.0};
}
inline ApiError unsupported(std::string param, std::string message) {
  return {400, std::move(message), std::move(param), "unsupported_value", 0.0};
}

ApiError missing_field(std::string param, std::string_view wanted);
// `name` is no model of this server; `advice` says what is.
ApiError no_such_model(std::string_view name, std::string_view advice);

// {"error":{"message","type","param","code"}}
std::string error_body(const ApiError& error);
HttpAnswer error_answer(const ApiError& error);

}  // namespace quire::server::api
