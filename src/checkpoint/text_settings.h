// What a checkpoint says about text: how to sample by default, when to stop, and its chat templates.
// From generation_config.json, tokenizer_config.json and chat_template.jinja, or from GGUF metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace quire::checkpoint {

// Absent values are empty: the caller's defaults hold.
struct GenerationDefaults {
  std::vector<std::int64_t> eos_ids;  // generation_config.json, else config.json, else empty
  std::optional<std::int64_t> bos_id;
  std::optional<std::int64_t> pad_id;
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
};
Result<GenerationDefaults> read_generation_defaults(const Checkpoint& checkpoint);

struct ChatTemplate {
  std::string name;  // "default", "tool_use", ...
  std::string text;
};

struct TextSettings {
  std::vector<ChatTemplate> templates;  // chat_template.jinja first when it exists; may be empty
  std::string bos_token;                // text of the special tokens; empty when not given
  std::string eos_token;
  std::string pad_token;
  std::string unk_token;
  std::optional<bool> add_bos;  // whether the tokenizer adds them by itself
  std::optional<bool> add_eos;
  // Why the rest was not read, where a value is none that is known here. What stands above is as far as it
  // came.
  Status refused;

  // The template of that name, or null.
  const ChatTemplate* find(std::string_view name) const;
};
// Fails for a file that is no JSON object: it was cut short on its way here.
Result<TextSettings> read_text_settings(const Checkpoint& checkpoint);

}  // namespace quire::checkpoint
