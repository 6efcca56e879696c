// The files of the web page, as they lie beside this one, in the program. The table is made at build time
// (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace quire::server {

struct PageFile {
  std::string_view name;  // "index.html"
  std::string_view etag;  // with its quotes: changes with the bytes
  std::string_view bytes;
};

std::span<const PageFile> page_files();

}  // namespace quire::server
