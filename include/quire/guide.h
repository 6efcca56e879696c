// Guide: what an answer may be, token by token. The engine asks it before each token of the request and tells
// it what was drawn; a grammar is one (session.h: AnswerFormat), a caller may write another.
//
// One guide serves one request, once. The engine calls it from its own thread only. A guided request is never
// planned before its last token is known, so beside others it takes part in every second step at most.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace quire {

class Guide {
 public:
  virtual ~Guide() = default;

  // Sets bit i % 32 of word i / 32 for every id i that may come next, and clears the others; the span has a
  // bit for every id of the vocabulary. False: every id may, and `allowed` means nothing. Asked again before
  // accept(), it answers the same. When no bit is set the request ends as failed.
  virtual bool mask(std::span<std::uint32_t> allowed) = 0;
  // The next token of the answer. The stop token that ends a request is not part of it.
  virtual void accept(std::int32_t token) = 0;
  // Nothing more may follow: the request ends (Finish::stop) after the token accepted last.
  virtual bool ended() const = 0;
  // Why mask() set no bit, in words for whoever wrote the rules (Output::guide_problem); empty where that was
  // no fault of theirs.
  virtual std::string_view problem() const { return {}; }
};

// The same rules for many requests. Immutable: any thread.
class GuideMaker {
 public:
  virtual ~GuideMaker() = default;
  virtual std::shared_ptr<Guide> make() const = 0;
};

}  // namespace quire
