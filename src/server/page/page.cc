#include "server/page/page.h"

#include <string>
#include <utility>

#include "server/page/files.h"

namespace quire::server {
namespace {

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

}  // namespace

void add_page_routes(Router& router) {
  for (const PageFile& file : page_files()) {
    const std::string path = file.name == "index.html" ? "/" : "/page/" + std::string(file.name);
    router.add("GET", path, RouteAccess::open,
               [&file](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
                 responder->send(file_answer(request, file));
               });
  }
}

}  // namespace quire::server
