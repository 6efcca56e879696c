#include "platform/cuda/library.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

namespace quire::platform::cuda {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The folders inside `folder`, by name; none where it cannot be read.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->is_directory(error)) found.push_back(at->path());
  std::sort(found.begin(), found.end());
  return found;
}

void add(const fs::path& folder, std::vector<std::string>& to) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return;
  const std::string text = folder.string();
  if (std::find(to.begin(), to.end(), text) == to.end()) to.push_back(text);
}

void add_toolkits(std::vector<std::string>& to) {
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string home = environment(name);
    if (!home.empty()) add(fs::path(home) / "lib64", to);
  }
  add("/usr/local/cuda/lib64", to);
  for (const fs::path& folder : folders_in("/usr/local"))
    if (folder.filename().string().starts_with("cuda-")) add(folder / "lib64", to);
}

// <environment>/lib/python3.x/site-packages/nvidia/<package>/lib
void add_python(const fs::path& root, std::vector<std::string>& to) {
  for (const fs::path& python : folders_in(root / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})
      for (const fs::path& package : folders_in(python / packages / "nvidia")) add(package / "lib", to);
  }
}

// The environments of the python3 programs on PATH: where each stands, and where it points to.
void add_pythons_on_path(std::vector<std::string>& to) {
  const std::string path = environment("PATH");
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const fs::path program = fs::path(path.substr(begin, end - begin)) / "python3";
    std::error_code error;
    if (end > begin && fs::exists(program, error)) {
      add_python(program.parent_path().parent_path(), to);
      const fs::path real = fs::canonical(program, error);
      if (!error) add_python(real.parent_path().parent_path(), to);
    }
    begin = end + 1;
  }
}

std::string path_of(void* handle) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

}  // namespace

std::vector<std::string> library_folders() {
  std::vector<std::string> folders;
  add_toolkits(folders);
  const std::string environment_root = environment("VIRTUAL_ENV");
  if (!environment_root.empty()) add_python(environment_root, folders);
  add_pythons_on_path(folders);
  return folders;
}

std::string why_no_driver(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    const std::string said = error == nullptr ? "no reason given" : error;
    // Of this file and not of one that it needs.
    if (said.starts_with(name + ": ") && said.find("No such file") != std::string::npos)
      return name + " is not found";
    return fmt::format("{} does not load: {}", name, said);
  }
  const std::string path = path_of(handle);
  const bool driver = dlsym(handle, "cuInit") != nullptr;
  dlclose(handle);
  return driver ? fmt::format("{} does not start", path)
                : fmt::format("{} is no CUDA driver: it has no cuInit", path);
}

Result<Library> Library::open(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, Library> loaded;
  const std::lock_guard lock(mutex);
  if (const auto found = loaded.find(name); found != loaded.end()) return found->second;
  if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    return loaded.emplace(name, Library(handle, path_of(handle))).first->second;
  }
  const std::vector<std::string> folders = library_folders();
  QUIRE_TRY(library, open_in(name, folders));
  return loaded.emplace(name, std::move(library)).first->second;
}

Result<Library> Library::open_in(const std::string& name, std::span<const std::string> folders) {
  std::string searched = "the system's libraries (LD_LIBRARY_PATH, ldconfig)";
  std::string refused;  // what the loader said of a file that exists
  for (const std::string& folder : folders) {
    searched += ", " + folder;
    const std::string path = folder + "/" + name;
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return Library(handle, path);
    const char* said = dlerror();
    refused += fmt::format("; {} does not load: {}", path, said == nullptr ? "no reason given" : said);
  }
  return bad_input(fmt::format(
      "{} is not found: searched {}{}: install the CUDA toolkit, or the Python package of the library, or "
      "name its folder in LD_LIBRARY_PATH",
      name, searched, refused));
}

void* Library::address(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace quire::platform::cuda
