#include "engine/crash_note.h"

#include <map>
#include <mutex>

#include "base/check.h"

namespace quire::engine {
namespace {

struct Notes {
  std::mutex mutex;
  std::map<const CrashNoteEntry*, std::string> texts;
};

// Never destroyed: a check may fail while the process ends.
Notes& notes() {
  static Notes* const kNotes = new Notes;
  return *kNotes;
}

std::string crash_note() {
  // The failing thread may hold the lock; a crash must not hang on it.
  std::unique_lock lock(notes().mutex, std::try_to_lock);
  if (!lock.owns_lock()) return "";
  std::string all;
  for (const auto& [entry, text] : notes().texts) all += text;
  return all;
}

}  // namespace

CrashNoteEntry::~CrashNoteEntry() {
  if (!listed_) return;
  const std::lock_guard lock(notes().mutex);
  notes().texts.erase(this);
}

void CrashNoteEntry::set(std::string text) {
  const std::lock_guard lock(notes().mutex);
  notes().texts[this] = std::move(text);
  listed_ = true;
  set_crash_note(&crash_note);
}

}  // namespace quire::engine
