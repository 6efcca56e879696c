#include "server/api/error.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/json.h"

namespace quire::server::api {

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
