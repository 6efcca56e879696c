// QUIRE_CHECK: an invariant of ours. Always on, in every build. A failure is a bug of Quire: it prints
// the place, the condition and the values given, then a backtrace, then whatever the crash note hook
// prints (the engine registers its memory ledger there), and aborts.
//
// The world's faults (files, requests, memory, limits) are never checks: they are Result (result.h).
#pragma once

#include <fmt/core.h>

#include <string>

namespace quire {

// Called once on the way down, from the failing thread. Set by the engine; null means nothing to add.
using CrashNote = std::string (*)();
void set_crash_note(CrashNote note);

// From now on a signal that means a crash (SEGV, BUS, FPE, ILL, ABRT) reports like a failed check before the
// process dies of it. For long-running programs; not in sanitizer builds, which have their own report. Once.
void report_crashes();

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& values);

}  // namespace quire

// QUIRE_CHECK(a < b, "a={} b={}", a, b): the format and its values are required; say what was seen.
#define QUIRE_CHECK(condition, ...)                  \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::quire::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)))
