// Code compiled for one instruction set must define no weak function: of several equal ones the linker
// keeps any, and the whole program would run it on processors that lack the instructions.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <sstream>
#include <string>

namespace quire::ops::cpu {
namespace {

#ifndef QUIRE_SANITIZED  // sanitizers add weak symbols of their own

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> piece{};
  while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), pipe))
    text.append(piece.data(), count);
  pclose(pipe);
  return text;
}

TEST(Symbols, NoWeakFunctionsInCodeOfOneLevel) {
  std::istringstream files(QUIRE_LEVEL_OBJECTS);
  int symbols = 0;
  for (std::string file; std::getline(files, file, ':');) {
    std::istringstream lines(output_of(fmt::format("nm --defined-only '{}' 2>/dev/null", file)));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string address, kind, name;
      if (!(words >> address >> kind >> name)) continue;
      ++symbols;
      EXPECT_TRUE(kind != "W" && kind != "V" && kind != "u") << name << " in " << file;
    }
  }
  EXPECT_GT(symbols, 0) << "no nm, or no archives beside the test";
}
#endif

}  // namespace
}  // namespace quire::ops::cpu
