// What a failing check prints last: the ledgers of the engines that live in this process.
#pragma once

#include <string>

namespace quire::engine {

// One engine's text in the note, for as long as it lives. Thread safe.
class CrashNoteEntry {
 public:
  CrashNoteEntry() = default;
  CrashNoteEntry(const CrashNoteEntry&) = delete;
  CrashNoteEntry& operator=(const CrashNoteEntry&) = delete;
  ~CrashNoteEntry();
  void set(std::string text);

 private:
  bool listed_ = false;
};

}  // namespace quire::engine
