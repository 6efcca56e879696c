// The pre-tokenizers that GGUF files name in tokenizer.ggml.pre: name -> how text is cut into words. The file
// does not hold the patterns, so the names are a contract; one that is not in the table is refused.
#pragma once

#include <span>
#include <string_view>

namespace quire::tokenizer {

struct GgufPre {
  std::string_view name;
  // Patterns one after the other, each isolated within the words of the one before.
  std::span<const char* const> patterns;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
  bool nfc = false;      // the original tokenizer normalizes
};

// All rows, for messages and tests.
std::span<const GgufPre> gguf_pre_table();
// Null: not known.
const GgufPre* find_gguf_pre(std::string_view name);

}  // namespace quire::tokenizer
