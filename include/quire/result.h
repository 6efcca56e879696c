// Result<T>: the outcome of something the world can spoil (a file, a request, a limit). Quire throws no
// exceptions of its own; a library's exceptions are caught where the library is called.
//
// A message names the facts and the nearest legal change ("page size 512 is over 256: use --page-size
// 256 or less"). The code decides the exit code of the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace quire {

enum class Code : int {
  bad_input = 2,     // the user or a file asks for what cannot be
  no_resources = 3,  // legal, but memory, pages or another limit does not allow it here
  internal = 70,     // ours; used where a check would lose other requests
};

struct Error {
  Code code = Code::bad_input;
  std::string message;
};

inline Error bad_input(std::string message) { return Error{Code::bad_input, std::move(message)}; }
inline Error no_resources(std::string message) { return Error{Code::no_resources, std::move(message)}; }

// Taking the value of an error is a bug of the caller: prints the error and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error error) : error_(std::move(error)) {}
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  T& value() & { return require(), *value_; }
  const T& value() const& { return require(), *value_; }
  T&& value() && { return require(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return error_; }

 private:
  void require() const {
    if (value_.has_value()) return;
    std::fprintf(stderr, "quire: value() of an error: %s\n", error_.message.c_str());
    std::abort();
  }
  std::optional<T> value_;
  Error error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool failed_ = false;
};
using Status = Result<void>;

}  // namespace quire
