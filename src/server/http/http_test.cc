#include "server/http/http.h"

#include <gtest/gtest.h>

namespace quire::server {
namespace {

TEST(HttpRequest, FieldsAreFoundByName) {
  HttpRequest request;
  request.headers = {{"accept", "a"}, {"x", "first"}, {"x", "second"}};
  request.query = {{"since", ""}, {"n", "1"}};
  request.params = {{"model", "m"}};
  EXPECT_EQ(request.header("x"), "first");
  EXPECT_EQ(request.header("y"), "");
  EXPECT_EQ(request.query_value("since"), "");
  EXPECT_EQ(request.query_value("n"), "1");
  EXPECT_FALSE(request.query_value("x").has_value());
  EXPECT_EQ(request.param("model"), "m");
}

TEST(ErrorAnswer, IsJsonWhateverTheClientSent) {
  const HttpAnswer answer = error_answer(404, "no \"path\" \\ \n\x01\xff here", "unknown_path");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.content_type, "application/json");
  EXPECT_EQ(answer.body,
            R"({"error":{"message":"no \"path\" \\ \n?? here","type":"not_found_error","param":null,)"
            R"("code":"unknown_path"}})");
  EXPECT_EQ(error_answer(413, "m", "").body,
            R"({"error":{"message":"m","type":"invalid_request_error","param":null,"code":null}})");
  EXPECT_EQ(error_type(503), "server_error");
  EXPECT_EQ(error_type(429), "rate_limit_error");
}

}  // namespace
}  // namespace quire::server
