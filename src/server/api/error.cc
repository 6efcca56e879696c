#include "server/api/error.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/json.h"

namespace quire::server::api {

ApiError missing_field(std::string param, std::string_view wanted) {
  std::string message = fmt::format("'{}' is missing: {}", param, wanted);
  return {400, std::move(message), std::move(param), "missing_required_parameter", 0.0};
}

ApiError no_such_model(std::string_view name, std::string_view advice) {
  return {404, fmt::format("the model {} is not here: {}", shown(Json(name)), advice), "model",
          "model_not_found", 0.0};
}

std::string error_body(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  Json object;
  object["message"] = error.message;
  object["type"] = error_type(error.status);
  object["param"] = or_null(error.param);
  object["code"] = or_null(error.code);
  return json_text(Json{{"error", std::move(object)}});
}

HttpAnswer error_answer(const ApiError& error) {
  HttpAnswer answer{.status = error.status, .body = error_body(error)};
  if (error.retry_after_s > 0.0) {
    answer.headers.emplace_back("retry-after", std::to_string(std::lround(std::ceil(error.retry_after_s))));
  }
  return answer;
}

}  // namespace quire::server::api
