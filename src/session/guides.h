// Guides of one model: what a request's format, schema and tools mean over its vocabulary.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "grammar/grammar.h"
#include "quire/session.h"
#include "session/text_model.h"

namespace quire::session {

// Thread-safe. The model outlives it. A compiler is made when it is first needed.
class Guides {
 public:
  explicit Guides(const TextModel& model) : model_(model) {}

  // Null when the answer may be anything. `tools`: the conversation's, a JSON array or empty.
  Result<std::shared_ptr<const GuideMaker>> make(const TextRequest& request, const std::string& tools) const;

 private:
  struct Slot {
    std::mutex mutex;
    std::unique_ptr<grammar::Compiler> compiler;
  };
  Result<grammar::Compiler*> compiler(Slot& slot, std::span<const std::string_view> markers) const;

  const TextModel& model_;
  mutable Slot plain_;
  mutable Slot with_markers_;
};

}  // namespace quire::session
