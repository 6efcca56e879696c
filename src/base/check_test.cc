#include "base/check.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "base/ids.h"
#include "base/result.h"

namespace quire {
namespace {

TEST(Check, PassesWithoutFormattingItsValues) {
  int formatted = 0;
  const auto count = [&formatted] { return ++formatted; };
  QUIRE_CHECK(true, "{}", count());
  EXPECT_EQ(formatted, 0);
}

TEST(CheckDeathTest, NamesPlaceConditionAndValues) {
  const int a = 3;
  EXPECT_DEATH(QUIRE_CHECK(a < 2, "a={}", a), "check_test.cc:[0-9]+: a < 2 is false: a=3");
}

TEST(CheckDeathTest, PrintsBacktraceThenTheCrashNote) {
  const auto die = [] {
    set_crash_note([] { return std::string("ledger: 7 bytes"); });
    QUIRE_CHECK(false, "x={}", 1);
  };
  EXPECT_DEATH(die(), "backtrace:(.|\n)*ledger: 7 bytes");
}

#ifndef QUIRE_SANITIZED
TEST(CheckDeathTest, ACrashReportsLikeAFailedCheckAndKillsAllTheSame) {
  const auto die = [] {
    set_crash_note([] { return std::string("ledger: 7 bytes"); });
    report_crashes();
    std::raise(SIGSEGV);
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGSEGV),
              "signal 11 .SEGV.(.|\n)*backtrace:(.|\n)*ledger: 7 bytes");
}

TEST(CheckDeathTest, AFailedCheckIsReportedOnce) {
  const auto die = [] {
    report_crashes();
    QUIRE_CHECK(false, "x={}", 1);
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGABRT), "x=1");
}
#endif

TEST(CheckDeathTest, AFailingCrashNoteEndsTheProcessAllTheSame) {
  const auto die = [] {
    set_crash_note([]() -> std::string { check_failed("note.cc", 1, "inner", "second"); });
    QUIRE_CHECK(false, "first");
  };
  EXPECT_DEATH(die(), "first(.|\n)*second");
}

Result<int> half(int value) {
  if (value % 2 != 0) return bad_input("odd");
  return value / 2;
}

Result<int> quarter(int value) {
  QUIRE_TRY(first, half(value));
  QUIRE_TRY(second, half(first));
  return second;
}

Status only_even(int value) {
  QUIRE_TRY_STATUS(half(value).ok() ? Status() : Status(no_resources("no")));
  return {};
}

TEST(Result, TryPassesValuesAndErrorsOn) {
  EXPECT_EQ(*quarter(12), 3);
  ASSERT_FALSE(quarter(6).ok());
  EXPECT_EQ(quarter(6).error().message, "odd");
  EXPECT_TRUE(only_even(4).ok());
  EXPECT_EQ(only_even(5).error().code, Code::no_resources);
}

TEST(ResultDeathTest, ValueOfAnErrorIsABug) { EXPECT_DEATH(half(3).value(), "value\\(\\) of an error: odd"); }

TEST(Ids, CompareAndHash) {
  EXPECT_LT(PageId{1}, PageId{2});
  EXPECT_EQ(kPaddingPage, PageId{0});
  EXPECT_EQ(std::hash<PageId>()(PageId{5}), std::hash<PageId>()(PageId{5}));
}

}  // namespace
}  // namespace quire
