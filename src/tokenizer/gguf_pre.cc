#include "tokenizer/gguf_pre.h"

#include "tokenizer/spec.h"

namespace quire::tokenizer {
namespace {

// clang-format off
constexpr const char* kGpt2[] = {
    kGpt2Pattern,
};
constexpr const char* kDigitsThenGpt2[] = {
    R"re(\p{N})re",
    kGpt2Pattern,
};
constexpr const char* kLlama3[] = {
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
};
constexpr const char* kQwen2[] = {
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
};
constexpr const char* kQwen35[] = {
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
};
constexpr const char* kO200k[] = {
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
};
constexpr const char* kTekken[] = {
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
};
constexpr const char* kDeepseek3[] = {
    R"re(\p{N}{1,3})re",
    R"re([一-龥぀-ゟ゠-ヿ]+)re",
    R"re([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
};
constexpr const char* kFalcon[] = {
    R"re([\p{P}\$\+<=>\^~\|`]+)re",
    kGpt2Pattern,
    R"re([0-9][0-9][0-9])re",
};
// clang-format on

constexpr GgufPre kTable[] = {
    {"gpt-2", kGpt2},
    {"phi-2", kGpt2},
    {"gpt-neox", kGpt2, false, false, true},
    {"olmo", kGpt2, false, false, true},
    {"smollm", kDigitsThenGpt2},
    {"starcoder", kDigitsThenGpt2},
    {"refact", kDigitsThenGpt2},
    {"codeshell", kDigitsThenGpt2},
    {"exaone", kDigitsThenGpt2},
    {"command-r", kDigitsThenGpt2, false, true, true},
    {"llama-bpe", kLlama3, true, true},
    {"llama3", kLlama3, true, true},
    {"llama-v3", kLlama3, true, true},
    {"falcon3", kLlama3, true, true},
    {"smaug-bpe", kLlama3, true, true},
    {"dbrx", kLlama3},
    {"glm4", kLlama3},
    {"chatglm-bpe", kLlama3},
    {"qwen2", kQwen2, false, false, true},
    {"deepseek-r1-qwen", kQwen2, false, true, true},
    {"stablelm2", kQwen2},
    {"qwen35", kQwen35, false, false, true},
    {"gpt-4o", kO200k},
    {"llama4", kO200k},
    {"tekken", kTekken, true, true},
    {"deepseek-v3", kDeepseek3, false, true},
    {"falcon", kFalcon},
};

}  // namespace

std::span<const GgufPre> gguf_pre_table() { return kTable; }

const GgufPre* find_gguf_pre(std::string_view name) {
  for (const GgufPre& row : kTable) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace quire::tokenizer
