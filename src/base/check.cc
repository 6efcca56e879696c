#include "base/check.h"

#include <execinfo.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace quire {
namespace {

std::atomic<CrashNote> crash_note{nullptr};
// Set by the first failing thread: a check that fails inside the crash note, or in a second thread at the
// same moment, must not print a second report into the first.
std::atomic<bool> failing{false};

}  // namespace

void set_crash_note(CrashNote note) { crash_note.store(note); }

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  std::fflush(stdout);
  fmt::print(stderr, "quire: bug: {}:{}: {} is false: {}\n", file, line, condition, values);
  if (!failing.exchange(true)) {
    constexpr int kFrames = 64;
    void* frames[kFrames];
    const int count = backtrace(frames, kFrames);
    std::fputs("backtrace:\n", stderr);
    std::fflush(stderr);
    backtrace_symbols_fd(frames, count, STDERR_FILENO);
    if (const CrashNote note = crash_note.load()) fmt::print(stderr, "{}\n", note());
  }
  std::fflush(stderr);
  std::abort();
}

}  // namespace quire
