// Grammars over a model's vocabulary: a JSON schema, an EBNF text or the form of a tool call becomes a
// GuideMaker (quire/guide.h), whose guides say token by token what may come next. By xgrammar.
//
// What comes from a client is bounded before it is compiled (size, depth, counts), and a JSON schema with a
// keyword that a grammar cannot hold an answer to is refused with the keyword's place: what is accepted here
// is enforced. The work of a compilation and of each mask is bounded too, by count: a grammar that can be
// read in too many ways is refused, or its request fails. A schema's objects have their required and optional
// properties in the order of the schema.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quire/guide.h"
#include "tokenizer/tokenizer.h"

namespace quire::grammar {

inline constexpr std::size_t kGrammarBytesMax = 64 * 1024;
// Of compiled grammars, of which the least recently used go, and again of the texts, with which all of them
// go.
inline constexpr std::int64_t kCacheBytes = 64 << 20;

// Thread-safe: compiling blocks its caller only. What was compiled is kept and found again by its text.
class Compiler {
 public:
  // `stop_tokens` may come where the grammar is complete; other special tokens may never, but for `markers`,
  // which stand for their text. The first use costs some 100 ms (the vocabulary is sorted).
  static Result<std::unique_ptr<Compiler>> create(const tokenizer::Tokenizer& tokenizer,
                                                  std::span<const std::int32_t> stop_tokens,
                                                  std::span<const std::string_view> markers = {});
  virtual ~Compiler() = default;

  virtual Result<std::shared_ptr<const GuideMaker>> json_object() = 0;
  virtual Result<std::shared_ptr<const GuideMaker>> json_schema(const std::string& schema) = 0;
  // Rules `name ::= ...`, beginning at `root`.
  virtual Result<std::shared_ptr<const GuideMaker>> ebnf(const std::string& text) = 0;
  // xgrammar's structural tag, from our own code (session/tools): its schemas must have passed
  // check_schema().
  virtual Result<std::shared_ptr<const GuideMaker>> structural_tag(const std::string& json) = 0;
};

}  // namespace quire::grammar
