// TokenizerSpec from the vocabulary of a GGUF file.
#include "base/text.h"
#include "tokenizer/gguf_pre.h"

#include <fmt/core.h>
#include "tokenizer/spec.h"

namespace quire::tokenizer {
namespace {

// Values of tokenizer.ggml.token_type.
enum GgufType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

Status read_tokens(const GgufVocabulary& v, TokenizerSpec& spec) {
  if (v.tokens.size() > kIdsMax)
    return bad_input(fmt::format("{} tokens are over the limit of {}", v.tokens.size(), kIdsMax));
  if (!v.types.empty() && v.types.size() != v.tokens.size()) {
    return bad_input(
        fmt::format("the file has {} tokens but {} token types", v.tokens.size(), v.types.size()));
  }
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    const std::int32_t type = v.types.empty() ? kNormal : v.types[i];
    if (type < kNormal || type > kByte)
      return bad_input(fmt::format("token {} has the unknown type {}", i, type));
    const auto id = static_cast<TokenId>(i);
    std::string content(v.tokens[i]);
    if (content.empty()) continue;
    if (type == kControl || type == kUnknown || type == kUserDefined) {
      if (content.size() > kAddedBytesMax)
        return bad_input(fmt::format("token {} has over {} bytes", i, kAddedBytesMax));
      if (spec.added.size() >= kAddedMax)
        return bad_input(fmt::format("over {} control and user tokens", kAddedMax));
      AddedToken token;
      token.id = id;
      token.content = content;
      token.special = type != kUserDefined;
      spec.added.push_back(std::move(token));
    }
    spec.vocabulary.emplace_back(std::move(content), id);
  }
  return {};
}

Status read_merges(const GgufVocabulary& v, TokenizerSpec& spec) {
  if (v.merges.size() > kMergesMax)
    return bad_input(fmt::format("{} merges are over the limit of {}", v.merges.size(), kMergesMax));
  spec.merges.reserve(v.merges.size());
  for (std::string_view line : v.merges) {
    // The first space is a border: a token of this vocabulary does not begin with one.
    const std::size_t space = line.find(' ', 1);
    if (space == std::string_view::npos) {
      return bad_input(
          fmt::format("merge \"{}\" is not two tokens with a space between", line.substr(0, 100)));
    }
    spec.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> spec_from_gguf(const GgufVocabulary& v) {
  if (v.model != "gpt2") {
    return bad_input(fmt::format(
        "tokenizer model \"{}\" of the GGUF file is not supported; supported: gpt2 (BPE with byte level)",
        v.model));
  }
  const GgufPre* pre = find_gguf_pre(v.pre);
  if (!pre) {
    return bad_input(fmt::format("pre-tokenizer \"{}\" of the GGUF file is not supported; supported: {}",
                                 v.pre, comma_list(gguf_pre_table(), &GgufPre::name)));
  }
  TokenizerSpec spec;
  QUIRE_TRY_STATUS(read_tokens(v, spec));
  QUIRE_TRY_STATUS(read_merges(v, spec));
  spec.ignore_merges = pre->ignore_merges;
  if (pre->nfc) spec.normalizer.emplace_back();
  for (const char* pattern : pre->patterns) {
    PreStep step;
    step.pattern = pattern;
    spec.pre_tokenizer.push_back(std::move(step));
  }
  PreStep bytes;
  bytes.kind = PreStep::Kind::byte_level;
  spec.pre_tokenizer.push_back(std::move(bytes));
  spec.bos = v.bos;
  spec.eos = v.eos;
  const bool add_bos = v.add_bos.value_or(pre->add_bos);
  const bool add_eos = v.add_eos.value_or(false);
  if (add_bos && v.bos) spec.prefix.push_back(*v.bos);
  if (add_eos && v.eos) spec.suffix.push_back(*v.eos);
  return spec;
}

}  // namespace quire::tokenizer
