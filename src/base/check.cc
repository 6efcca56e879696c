#include "base/check.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace quire {
namespace {

std::atomic<CrashNote> crash_note{nullptr};
// Set by the first failing thread: a check that fails inside the crash note, or in a second thread at the
// same moment, must not print a second report into the first.
std::atomic<bool> failing{false};

constexpr std::array kCrashSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

void report() {
  constexpr int kFrames = 64;
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  std::fputs("backtrace:\n", stderr);
  std::fflush(stderr);
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
  if (const CrashNote note = crash_note.load()) fmt::print(stderr, "{}\n", note());
  std::fflush(stderr);
}

// The process is lost: what a signal handler may not do is tried all the same, and an alarm ends it when that
// hangs.
void on_crash(int signal) {
  constexpr unsigned kSeconds = 5;
  if (!failing.exchange(true)) {
    alarm(kSeconds);
    fmt::print(stderr, "quire: bug: killed by signal {} ({})\n", signal, sigabbrev_np(signal));
    report();
  }
  // SA_RESETHAND: this time it is deadly.
  raise(signal);
}

}  // namespace

void report_crashes() {
#ifndef QUIRE_SANITIZED
  struct sigaction action {};
  action.sa_handler = &on_crash;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_NODEFER;
  for (const int signal : kCrashSignals) sigaction(signal, &action, nullptr);
#endif
}

void set_crash_note(CrashNote note) { crash_note.store(note); }

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  std::fflush(stdout);
  fmt::print(stderr, "quire: bug: {}:{}: {} is false: {}\n", file, line, condition, values);
  if (!failing.exchange(true)) report();
  std::fflush(stderr);
  std::abort();
}

}  // namespace quire
