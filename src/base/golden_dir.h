// Where tests find the golden data: $QUIRE_GOLDEN_DIR, else ../shared/golden beside the repository, else
// the small set in tests/data/golden. Header only and for tests only: QUIRE_SOURCE_DIR is defined for
// test programs (cmake/module.cmake).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace quire::testing {

// The folder without a trailing slash, or "" when there is none: the tests fail then, since every checkout
// has one.
inline std::string golden_dir() {
  if (const char* named = std::getenv("QUIRE_GOLDEN_DIR")) return named;
#ifdef QUIRE_SOURCE_DIR
  const std::filesystem::path source = QUIRE_SOURCE_DIR;
  std::error_code ignored;
  for (const std::filesystem::path& folder : {source / "../shared/golden", source / "tests/data/golden"}) {
    if (std::filesystem::is_directory(folder, ignored)) return folder.lexically_normal().string();
  }
#endif
  return "";
}

}  // namespace quire::testing
