#include "server/http/router.h"

#include <gtest/gtest.h>

namespace quire::server {
namespace {

class RouterTest : public testing::Test {
 protected:
  // Handlers that say which one they are.
  void add(const std::string& method, const std::string& pattern) {
    router_.add(
        method, pattern, RouteAccess::keyed,
        [this, pattern](const HttpRequest&, const std::shared_ptr<Responder>&) { called_ = pattern; });
  }
  // The pattern that answers; empty: none.
  std::string answers(const std::string& method, const std::string& path) {
    const Router::Match match = router_.find(method, path);
    called_.clear();
    if (match.handler != nullptr) (*match.handler)(HttpRequest(), nullptr);
    return called_;
  }

  Router router_;
  std::string called_;
};

TEST_F(RouterTest, TextWinsOverANameAndANameOverTheRest) {
  // Added from the loosest on, so that the order of add() would give the other answer.
  add("GET", "/v1/models/{model*}");
  add("GET", "/v1/models/{model}");
  add("GET", "/v1/models/list");
  EXPECT_EQ(answers("GET", "/v1/models/list"), "/v1/models/list");
  EXPECT_EQ(answers("GET", "/v1/models/other"), "/v1/models/{model}");
  EXPECT_EQ(answers("GET", "/v1/models/org/name"), "/v1/models/{model*}");
  EXPECT_EQ(answers("GET", "/v1/models/"), "");
  EXPECT_EQ(answers("GET", "/v1/models"), "");
  EXPECT_EQ(answers("GET", "/v1/models/list/"), "/v1/models/{model*}");
}

TEST_F(RouterTest, NamesGetWhatTheyStandFor) {
  add("GET", "/a/{x}/b/{rest*}");
  const Router::Match match = router_.find("GET", "/a/1 2/b/c/d");
  EXPECT_EQ(match.params, (HttpFields{{"x", "1 2"}, {"rest", "c/d"}}));
}

TEST_F(RouterTest, SaysWhichMethodsAPathHas) {
  add("POST", "/x");
  add("GET", "/x");
  add("GET", "/{name}");
  const Router::Match match = router_.find("DELETE", "/x");
  EXPECT_EQ(match.handler, nullptr);
  EXPECT_EQ(match.allowed, (std::vector<std::string>{"GET", "POST"}));
  EXPECT_TRUE(router_.find("GET", "/x/y").allowed.empty());
}

TEST_F(RouterTest, RootAndHints) {
  add("GET", "/");
  add("POST", "/v1/completions");
  EXPECT_EQ(answers("GET", "/"), "/");
  EXPECT_EQ(answers("GET", ""), "/");
  EXPECT_EQ(router_.hint("/v1/completion"), " (did you mean /v1/completions?)");
  EXPECT_EQ(router_.patterns(), (std::vector<std::string>{"/", "/v1/completions"}));
  EXPECT_EQ(router_.hint("/nothing of the kind"), " (legal: /, /v1/completions)");
}

TEST_F(RouterTest, ASecondHandlerIsABug) {
  add("GET", "/x");
  EXPECT_DEATH(add("GET", "/x"), "a second route GET /x");
}

}  // namespace
}  // namespace quire::server
