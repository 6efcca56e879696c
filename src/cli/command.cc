#include "cli/command.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/text.h"
#include "checkpoint/printable.h"

namespace quire::cli {

Error check_failed_error() { return Error{static_cast<Code>(1), ""}; }

namespace {

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<std::vector<std::int32_t>> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  std::string_view rest = without_blanks(text);
  if (rest.empty()) return bad_input("token ids: none given; give them as 1,2,3");
  while (true) {
    const std::string_view word = rest.substr(0, rest.find_first_of(",\n\r\t "));
    std::int32_t id = 0;
    if (word.empty()) {
      return bad_input(fmt::format("token ids: a comma without a token id {} it; give them as 1,2,3",
                                   rest.empty() ? "behind" : "before"));
    }
    if (!parse_number(word, &id) || id < 0) {
      return bad_input(fmt::format("token ids: '{}' is not a token id of 0 to {}; give them as 1,2,3",
                                   checkpoint::printable(word), INT32_MAX));
    }
    ids.push_back(id);
    rest = without_blanks(rest.substr(word.size()));
    if (rest.empty()) return ids;
    if (rest.front() == ',') rest = without_blanks(rest.substr(1));
  }
}

Result<std::string> read_file(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::directory)
    return bad_input(fmt::format("{} is a folder, not a file", path));
  // /dev/zero has no end.
  const bool device =
      type == std::filesystem::file_type::character || type == std::filesystem::file_type::block;
  if (device && !std::filesystem::equivalent(path, "/dev/null", error))
    return bad_input(fmt::format("{} is a device: give a file, a pipe, or - for standard input", path));
  std::ifstream input(path, std::ios::binary);
  if (!input) return bad_input(fmt::format("{}: the file cannot be read", path));
  text << input.rdbuf();
  if (input.bad()) return bad_input(fmt::format("{}: the file cannot be read", path));
  return text.str();
}

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.flush();
  return file ? Status() : Status(no_resources(fmt::format("{}: the file cannot be written", path)));
}

Status check_writable(const char* flag, const std::string& path) {
  if (path.empty()) return {};
  const std::filesystem::path file(path);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code error;
  const bool there = std::filesystem::exists(file, error);
  if (there && std::filesystem::is_directory(file, error))
    return bad_input(fmt::format("{} {} is a folder: name a file", flag, path));
  if (there ? access(path.c_str(), W_OK) == 0 : access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return bad_input(
      fmt::format("{} {}: the file cannot be written; name one in a folder that can be", flag, path));
}

}  // namespace quire::cli
