// The page's files as the router gives them. What a browser makes of them: tests/page_test.py.
#include "server/page/page.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "server/page/files.h"

namespace quire::server {
namespace {

class Caught final : public Responder {
 public:
  void send(HttpAnswer given) override { answer = std::move(given); }
  void start_stream(int, const std::string&, HttpFields) override { FAIL() << "a stream"; }
  void write(std::string_view) override {}
  void finish() override {}
  bool closed() const override { return false; }
  void on_close(std::function<void()>) override {}
  HttpAnswer answer{.status = 0};
};

HttpAnswer get(const Router& router, const std::string& path, HttpFields headers = {}) {
  const Router::Match match = router.find("GET", path);
  if (match.handler == nullptr) return {.status = 404};
  EXPECT_EQ(match.access, RouteAccess::open);
  auto caught = std::make_shared<Caught>();
  (*match.handler)({.method = "GET", .path = path, .headers = std::move(headers), .params = match.params},
                   caught);
  return caught->answer;
}

std::string field(const HttpAnswer& answer, std::string_view name) {
  for (const auto& [key, value] : answer.headers)
    if (key == name) return value;
  return "";
}

TEST(PageRoutes, GiveTheFilesOfTheFolderByteForByte) {
  Router router;
  add_page_routes(router);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/src/server/page")) {
    const std::string end = entry.path().extension();
    if (end != ".html" && end != ".css" && end != ".js") continue;
    const std::string name = entry.path().filename();
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const HttpAnswer answer = get(router, name == "index.html" ? "/" : "/page/" + name);
    EXPECT_EQ(answer.status, 200) << name;
    EXPECT_EQ(answer.body, bytes) << name;
    EXPECT_FALSE(field(answer, "content-security-policy").empty());
    ++files;
  }
  EXPECT_GE(files, 8);
  EXPECT_EQ(files, std::ssize(page_files()));
}

TEST(PageRoutes, NothingElseIsThere) {
  Router router;
  add_page_routes(router);
  for (const char* path : {"/page/main.jss", "/page/index.html", "/page/", "/page/a/b", "/index.html"})
    EXPECT_EQ(get(router, path).status, 404) << path;
  EXPECT_NE(get(router, "/page/main.jss").body.find("nothing is at /page/main.jss"), std::string::npos);
  EXPECT_EQ(router.patterns(), (std::vector<std::string>{"/", "/page/{name}"}));  // what hints are made from
}

TEST(PageRoutes, ABrowserThatHasAFileGetsNoBytes) {
  Router router;
  add_page_routes(router);
  const HttpAnswer first = get(router, "/");
  const HttpAnswer again = get(router, "/", {{"if-none-match", field(first, "etag")}});
  EXPECT_EQ(again.status, 304);
  EXPECT_TRUE(again.body.empty());
  EXPECT_EQ(get(router, "/", {{"if-none-match", "\"other\""}}).status, 200);
}

// No file names another host, and every file that one names is there.
TEST(PageRoutes, NothingComesFromOutside) {
  Router router;
  add_page_routes(router);
  const std::regex outside(R"((src|href|url|from|import)\s*[=(]?\s*["']?(https?:)?//)");
  const std::regex named(R"re((?:src|href)="(page/[^"]+)"|from "\./([^"]+)")re");
  int references = 0;
  for (const PageFile& file : page_files()) {
    const std::string text(file.bytes);
    EXPECT_FALSE(std::regex_search(text, outside)) << file.name;
    for (std::sregex_iterator at(text.begin(), text.end(), named), end; at != end; ++at, ++references) {
      const std::string path = (*at)[1].matched ? "/" + (*at)[1].str() : "/page/" + (*at)[2].str();
      EXPECT_EQ(get(router, path).status, 200) << file.name << " names " << path;
    }
  }
  EXPECT_GT(references, 8);
}

}  // namespace
}  // namespace quire::server
