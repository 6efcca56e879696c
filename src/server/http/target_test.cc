#include "server/http/target.h"

#include <gtest/gtest.h>

#include "server/http/access.h"

namespace quire::server {
namespace {

TEST(Target, PathAndQueryAreDecoded) {
  const std::optional<Target> target = parse_target("/v1/models/a%20b%2Fc?x=1+2&y&z=%3d%26&&x=3");
  ASSERT_TRUE(target.has_value());
  EXPECT_EQ(target->path, "/v1/models/a b/c");
  EXPECT_EQ(target->query, (HttpFields{{"x", "1 2"}, {"y", ""}, {"z", "=&"}, {"x", "3"}}));
  EXPECT_EQ(parse_target("/a+b")->path, "/a+b");
  EXPECT_EQ(parse_target("/%c3%a4")->path, "/ä");
}

TEST(Target, AProxysFormHasItsHostTakenOff) {
  EXPECT_EQ(parse_target("http://host:80/x?y=1")->path, "/x");
  EXPECT_EQ(parse_target("http://host")->path, "/");
  EXPECT_FALSE(parse_target("http://host?q=1").has_value());
}

TEST(Target, WhatIsNoPathIsRefused) {
  for (const char* target : {"", "x", "*", "/%", "/%4", "/%zz", "/%00", "/a%0d%0a", "/?a=%01", "host:443"})
    EXPECT_FALSE(parse_target(target).has_value()) << target;
}

HttpRequest with_header(const std::string& name, const std::string& value) {
  HttpRequest request;
  request.headers = {{name, value}};
  return request;
}

TEST(Access, AKeyIsNeededWhenThereAreAny) {
  const std::vector<std::string> keys = {"alpha", "beta"};
  EXPECT_TRUE(has_key(HttpRequest(), {}));
  EXPECT_FALSE(has_key(HttpRequest(), keys));
  EXPECT_TRUE(has_key(with_header("authorization", "Bearer alpha"), keys));
  EXPECT_TRUE(has_key(with_header("authorization", "bEARER  beta"), keys));
  EXPECT_TRUE(has_key(with_header("x-api-key", "beta"), keys));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer alph", "Bearer alphaa", "Bearer alphaalpha",
                            "Basic alpha", "alpha", "Bearer alpha beta"})
    EXPECT_FALSE(has_key(with_header("authorization", wrong), keys)) << wrong;
}

TEST(Access, RequestIdsOfClientsAreKeptWhenTheyAreHarmless) {
  EXPECT_EQ(usable_request_id("abc-1"), "abc-1");
  EXPECT_EQ(usable_request_id("a b"), "");
  EXPECT_EQ(usable_request_id("a\x7f"), "");
  EXPECT_EQ(usable_request_id(std::string(128, 'x')).size(), 128u);
  EXPECT_EQ(usable_request_id(std::string(129, 'x')), "");
}

TEST(Access, OptionsSaysTheMethodsAndAnswersAPreflight) {
  const std::vector<std::string> methods = {"GET", "POST"};
  EXPECT_EQ(options_answer(HttpRequest(), methods, "").headers,
            (HttpFields{{"allow", "GET, HEAD, POST, OPTIONS"}}));
  HttpRequest preflight = with_header("access-control-request-method", "POST");
  preflight.headers.emplace_back("access-control-request-headers", "authorization");
  EXPECT_EQ(options_answer(preflight, methods, "").headers.size(), 1u);
  const HttpFields fields = options_answer(preflight, methods, "*").headers;
  ASSERT_EQ(fields.size(), 4u);
  EXPECT_EQ(fields[2].second, "authorization");
  EXPECT_EQ(cors_fields("").size(), 0u);
  EXPECT_EQ(cors_fields("https://a")[0].second, "https://a");
}

TEST(Access, AnOriginIsWhatABrowserSendsForOne) {
  for (const char* fine :
       {"*", "null", "http://localhost", "http://localhost:3000", "https://page.example",
        "http://127.0.0.1:8080", "http://[::1]:8080", "https://[::1]", "chrome-extension://abcdefgh"})
    EXPECT_TRUE(is_cors_origin(fine)) << fine;
  for (const char* wrong :
       {"", "a", "http://", "://a", "http://a/", "http://a/b", "http://a\r\nX: y", "http://a b", "http://A",
        "http://a:", "http://a:0", "http://a:65536", "http://a:+8", "http://a, http://b", "http://user@a",
        "http://a?b", "http://*", "**", "http://[]"})
    EXPECT_FALSE(is_cors_origin(wrong)) << wrong;
}

}  // namespace
}  // namespace quire::server
