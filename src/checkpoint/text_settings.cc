#include "checkpoint/text_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/printable.h"

namespace quire::checkpoint {
namespace {

constexpr std::int64_t kMaxId = std::int64_t{1} << 24;
constexpr std::size_t kMaxEosIds = 256;
constexpr std::size_t kMaxTemplates = 64;
constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;
constexpr JsonLimits kTokenizerConfigLimits{
    .bytes = std::size_t{64} << 20, .depth = 64, .nodes = std::size_t{4} << 20};

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

template <class T>
Result<std::optional<T>> optional_of(bool present, Result<T> value) {
  if (!present) return std::optional<T>();
  if (!value.ok()) return value.error();
  return std::optional<T>(*value);
}

Result<std::optional<std::int64_t>> integer(const JsonView& file, std::string_view key) {
  const bool present = file.has(key);
  QUIRE_TRY(value, file.integer_or(key, 0, -1, kMaxId));
  return present && value >= 0 ? std::optional<std::int64_t>(value) : std::nullopt;
}

Result<std::optional<double>> number(const JsonView& file, std::string_view key, double high) {
  return optional_of<double>(file.has(key), file.number_or(key, 0, 0, high));
}

Result<std::vector<std::int64_t>> eos_ids(const JsonView& file) {
  if (!file.has("eos_token_id")) return std::vector<std::int64_t>();
  QUIRE_TRY(ids, file.integers("eos_token_id", kMaxEosIds));
  for (const std::int64_t id : ids) {
    if (id < 0 || id > kMaxId) {
      return bad_input(fmt::format("{}: eos_token_id {} is no token id", file.where(), id));
    }
  }
  return ids;
}

Status read_generation_config(const JsonView& file, GenerationDefaults& out) {
  QUIRE_TRY(ids, eos_ids(file));
  if (!ids.empty()) out.eos_ids = ids;
  QUIRE_TRY(bos, integer(file, "bos_token_id"));
  QUIRE_TRY(pad, integer(file, "pad_token_id"));
  QUIRE_TRY(do_sample, optional_of<bool>(file.has("do_sample"), file.boolean_or("do_sample", false)));
  QUIRE_TRY(temperature, number(file, "temperature", 1000));
  QUIRE_TRY(top_p, number(file, "top_p", 1));
  QUIRE_TRY(top_k, integer(file, "top_k"));
  QUIRE_TRY(min_p, number(file, "min_p", 1));
  QUIRE_TRY(penalty, number(file, "repetition_penalty", 1000));
  if (penalty && *penalty == 0)
    return bad_input(fmt::format("{}: repetition_penalty must be over 0", file.where()));
  if (bos) out.bos_id = bos;
  if (pad) out.pad_id = pad;
  out.do_sample = do_sample;
  out.temperature = temperature;
  out.top_p = top_p;
  out.top_k = top_k;
  out.min_p = min_p;
  out.repetition_penalty = penalty;
  return {};
}

Result<GenerationDefaults> from_folder(const Checkpoint& checkpoint) {
  GenerationDefaults out;
  const JsonView config = checkpoint.config();
  QUIRE_TRY(ids, eos_ids(config));
  out.eos_ids = ids;
  QUIRE_TRY(bos, integer(config, "bos_token_id"));
  QUIRE_TRY(pad, integer(config, "pad_token_id"));
  out.bos_id = bos;
  out.pad_id = pad;
  const std::string path = checkpoint.folder() + "/generation_config.json";
  if (!exists(path)) return out;
  QUIRE_TRY(file, JsonDocument::read(path));
  QUIRE_TRY_STATUS(read_generation_config(file.root(), out));
  return out;
}

// An id key of a GGUF file, empty when absent. -1 (all bits set) means "none" in some converters' files.
Result<std::optional<std::int64_t>> gguf_id(const GgufFile& file, std::string_view key) {
  if (!file.has(key)) return std::optional<std::int64_t>();
  QUIRE_TRY(id, file.integer(key, -1, UINT32_MAX));
  if (id < 0 || id == UINT32_MAX) return std::optional<std::int64_t>();
  if (id > kMaxId) return bad_input(fmt::format("{} is {}, no token id", key, id));
  return std::optional<std::int64_t>(id);
}

Result<GenerationDefaults> from_gguf(const GgufFile& file) {
  GenerationDefaults out;
  for (const std::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    QUIRE_TRY(id, gguf_id(file, key));
    if (id && std::find(out.eos_ids.begin(), out.eos_ids.end(), *id) == out.eos_ids.end())
      out.eos_ids.push_back(*id);
  }
  QUIRE_TRY(bos, gguf_id(file, "tokenizer.ggml.bos_token_id"));
  QUIRE_TRY(pad, gguf_id(file, "tokenizer.ggml.padding_token_id"));
  out.bos_id = bos;
  out.pad_id = pad;
  return out;
}

// A special token: a string, or an object with "content".
Result<std::string> token_text(const JsonView& file, std::string_view key) {
  if (!file.is_object(key)) return file.string_or(key, "");
  QUIRE_TRY(object, file.object(key));
  return object.string_or("content", "");
}

Status read_tokens(const JsonView& file, TextSettings& out) {
  QUIRE_TRY(bos, token_text(file, "bos_token"));
  QUIRE_TRY(eos, token_text(file, "eos_token"));
  QUIRE_TRY(pad, token_text(file, "pad_token"));
  QUIRE_TRY(unk, token_text(file, "unk_token"));
  if (out.bos_token.empty()) out.bos_token = bos;
  if (out.eos_token.empty()) out.eos_token = eos;
  if (out.pad_token.empty()) out.pad_token = pad;
  if (out.unk_token.empty()) out.unk_token = unk;
  return {};
}

Status add_template(TextSettings& out, std::string name, std::string text) {
  if (text.size() > kMaxTemplateBytes) {
    return bad_input(fmt::format("the chat template {} has {} bytes, over the limit of {}", printable(name),
                                 text.size(), kMaxTemplateBytes));
  }
  if (out.find(name) == nullptr) out.templates.push_back({std::move(name), std::move(text)});
  return {};
}

Status read_tokenizer_config(const JsonView& file, TextSettings& out) {
  QUIRE_TRY_STATUS(read_tokens(file, out));
  QUIRE_TRY(add_bos, optional_of<bool>(file.has("add_bos_token"), file.boolean_or("add_bos_token", false)));
  QUIRE_TRY(add_eos, optional_of<bool>(file.has("add_eos_token"), file.boolean_or("add_eos_token", false)));
  out.add_bos = add_bos;
  out.add_eos = add_eos;
  if (!file.is_array("chat_template")) {
    if (!file.has("chat_template")) return {};
    QUIRE_TRY(text, file.string("chat_template"));
    return add_template(out, "default", text);
  }
  QUIRE_TRY(entries, file.objects("chat_template", kMaxTemplates));
  for (const JsonView& entry : entries) {
    QUIRE_TRY(name, entry.string("name"));
    QUIRE_TRY(text, entry.string("template"));
    QUIRE_TRY_STATUS(add_template(out, name, text));
  }
  return {};
}

// chat_template.jinja
Status read_template_file(const std::string& folder, TextSettings& out) {
  const std::string path = folder + "/chat_template.jinja";
  if (!exists(path)) return {};
  QUIRE_TRY(text, read_text_file(path, kMaxTemplateBytes));
  return add_template(out, "default", text);
}

Result<TextSettings> settings_of_folder(const std::string& folder) {
  TextSettings out;
  out.refused = read_template_file(folder, out);
  if (exists(folder + "/tokenizer_config.json")) {
    QUIRE_TRY(file, JsonDocument::read(folder + "/tokenizer_config.json", kTokenizerConfigLimits));
    if (out.refused.ok()) out.refused = read_tokenizer_config(file.root(), out);
  }
  if (exists(folder + "/special_tokens_map.json")) {
    QUIRE_TRY(file, JsonDocument::read(folder + "/special_tokens_map.json"));
    if (out.refused.ok()) out.refused = read_tokens(file.root(), out);
  }
  return out;
}

// The text of the token whose id stands under `key`; empty when there is none.
Result<std::string> gguf_token(const GgufFile& file, const std::vector<std::string_view>& tokens,
                               std::string_view key) {
  QUIRE_TRY(id, gguf_id(file, key));
  if (!id) return std::string();
  if (static_cast<std::size_t>(*id) >= tokens.size()) {
    return bad_input(fmt::format("{} is {}, but there are {} tokens", key, *id, tokens.size()));
  }
  return std::string(tokens[static_cast<std::size_t>(*id)]);
}

Status read_gguf(const GgufFile& file, TextSettings& out) {
  constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
  if (file.has(kTemplateKey)) {
    QUIRE_TRY(text, file.string(kTemplateKey));
    QUIRE_TRY_STATUS(add_template(out, "default", std::string(text)));
  }
  const std::string prefix = std::string(kTemplateKey) + ".";
  for (auto it = file.metadata().lower_bound(prefix);
       it != file.metadata().end() && it->first.starts_with(prefix); ++it) {
    if (out.templates.size() >= kMaxTemplates)
      return bad_input(fmt::format("more than {} chat templates", kMaxTemplates));
    QUIRE_TRY(text, file.string(it->first));
    QUIRE_TRY_STATUS(add_template(out, it->first.substr(prefix.size()), std::string(text)));
  }
  if (file.has("tokenizer.ggml.tokens")) {
    QUIRE_TRY(tokens, file.strings("tokenizer.ggml.tokens"));
    QUIRE_TRY(bos, gguf_token(file, tokens, "tokenizer.ggml.bos_token_id"));
    QUIRE_TRY(eos, gguf_token(file, tokens, "tokenizer.ggml.eos_token_id"));
    QUIRE_TRY(pad, gguf_token(file, tokens, "tokenizer.ggml.padding_token_id"));
    QUIRE_TRY(unk, gguf_token(file, tokens, "tokenizer.ggml.unknown_token_id"));
    out.bos_token = bos;
    out.eos_token = eos;
    out.pad_token = pad;
    out.unk_token = unk;
  }
  constexpr std::string_view kAddBos = "tokenizer.ggml.add_bos_token";
  constexpr std::string_view kAddEos = "tokenizer.ggml.add_eos_token";
  QUIRE_TRY(add_bos, optional_of<bool>(file.has(kAddBos), file.boolean_or(kAddBos, false)));
  QUIRE_TRY(add_eos, optional_of<bool>(file.has(kAddEos), file.boolean_or(kAddEos, false)));
  out.add_bos = add_bos;
  out.add_eos = add_eos;
  return {};
}

}  // namespace

const ChatTemplate* TextSettings::find(std::string_view name) const {
  const auto place =
      std::find_if(templates.begin(), templates.end(), [&](const ChatTemplate& t) { return t.name == name; });
  return place == templates.end() ? nullptr : &*place;
}

Result<GenerationDefaults> read_generation_defaults(const Checkpoint& checkpoint) {
  return checkpoint.source() == Source::gguf ? from_gguf(checkpoint.gguf()) : from_folder(checkpoint);
}

Result<TextSettings> read_text_settings(const Checkpoint& checkpoint) {
  if (checkpoint.source() != Source::gguf) return settings_of_folder(checkpoint.folder());
  TextSettings out;
  out.refused = read_gguf(checkpoint.gguf(), out);
  return out;
}

}  // namespace quire::checkpoint
