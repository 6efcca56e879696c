// Reads tokenizer.json: the two big tables (model.vocab, model.merges) straight into vectors, the rest into a
// small tree. Private to json_spec.cc and this reader.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/spec.h"

namespace quire::tokenizer {

using Json = nlohmann::json;

// tree: everything but the two tables.
struct TokenizerFile {
  Json tree;
  std::vector<std::pair<std::string, TokenId>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  bool has_vocabulary = false;  // as an object; Unigram has an array
  bool has_merges = false;      // as an array
};

Result<TokenizerFile> read_tokenizer_file(std::string_view text);

}  // namespace quire::tokenizer
