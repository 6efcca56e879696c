// Test only: a byte-level tokenizer whose ids are the bytes, with special tokens from 256 on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quire::grammar::testing {

// The content of its tokenizer.json.
inline std::string byte_tokenizer(const std::vector<std::string>& special) {
  using Json = nlohmann::json;
  Json vocabulary;
  // The alphabet of byte-level vocabularies: printable bytes stand for themselves, others for 256 and up.
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const int code = itself ? byte : next++;
    std::string letter;
    if (code >= 128) letter += static_cast<char>(0xC0 | code >> 6);
    letter += static_cast<char>(code < 128 ? code : 0x80 | (code & 0x3F));
    vocabulary[letter] = byte;
  }
  Json added = Json::array();
  for (const std::string& content : special)
    added.push_back({{"id", 256 + static_cast<int>(added.size())}, {"content", content}, {"special", true}});
  return Json{{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}},
              {"added_tokens", added},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
              {"decoder", {{"type", "ByteLevel"}}}}
      .dump();
}

}  // namespace quire::grammar::testing
