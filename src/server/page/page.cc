#include "server/page/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "server/page/files.h"

namespace quire::server {
namespace {

constexpr std::string_view kIndex = "index.html";
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const char* content_type(std::string_view name) {
  const std::string_view end = name.substr(name.rfind('.') + 1);
  if (end == "html") return "text/html; charset=utf-8";
  if (end == "css") return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

// The file again only if it is not the one that the browser has.
HttpAnswer file_answer(const HttpRequest& request, const PageFile& file) {
  HttpAnswer answer{.content_type = content_type(file.name)};
  answer.headers = {{"etag", std::string(file.etag)},
                    {"cache-control", "no-cache"},
                    {"content-security-policy", kPolicy},
                    {"x-content-type-options", "nosniff"},
                    {"referrer-policy", "no-referrer"}};
  if (request.header("if-none-match") == file.etag) {
    answer.status = 304;
  } else {
    answer.body = file.bytes;
  }
  return answer;
}

HttpAnswer answer_of(const HttpRequest& request, std::string_view name) {
  const std::span<const PageFile> files = page_files();
  const auto file =
      std::find_if(files.begin(), files.end(), [&](const PageFile& one) { return one.name == name; });
  if (file != files.end()) return file_answer(request, *file);
  return error_answer(404, fmt::format("nothing is at {}", request.path), "unknown_path");
}

}  // namespace

void add_page_routes(Router& router) {
  router.add("GET", "/", RouteAccess::open,
             [](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
               responder->send(answer_of(request, kIndex));
             });
  router.add("GET", "/page/{name}", RouteAccess::open,
             [](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
               const std::string_view name = request.param("name");
               // The index's own links are right at / only.
               responder->send(answer_of(request, name == kIndex ? "" : name));
             });
}

}  // namespace quire::server
