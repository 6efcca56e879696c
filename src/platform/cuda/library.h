// CUDA libraries that the program does not carry (cuBLASLt): found when they are first needed, in the
// usual places, so that one program serves machines that have them and machines that do not.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::platform::cuda {

// Folders in which a CUDA library may lie, in the order of search: the toolkit (CUDA_HOME, CUDA_PATH,
// /usr/local/cuda*), then the Python environment's nvidia/*/lib (VIRTUAL_ENV, then the python3 on PATH). The
// system's own search (LD_LIBRARY_PATH, ldconfig) comes before all of them and is not listed.
std::vector<std::string> library_folders();

// Why the driver, a library of that name, cannot be used where the system's search for libraries finds it or
// does not: "libcuda.so.1 is not found", or what the loader says of the file that is there.
std::string why_no_driver(const std::string& name = "libcuda.so.1");

// A loaded library; stays loaded until the process ends, since what it made (handles, kernels) may live as
// long.
class Library {
 public:
  // `name` with its version: "libcublasLt.so.13". Loads it once per process; a missing one is a Result that
  // names it and every place searched. Thread safe.
  static Result<Library> open(const std::string& name);
  // Searches in `folders` instead, and there only.
  static Result<Library> open_in(const std::string& name, std::span<const std::string> folders);

  const std::string& path() const { return path_; }
  // The function's address, cast to F (a pointer type); null when the library has no such symbol.
  template <class F>
  F find(const char* symbol) const {
    return reinterpret_cast<F>(address(symbol));
  }

 private:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* address(const char* symbol) const;

  void* handle_;
  std::string path_;
};

}  // namespace quire::platform::cuda
