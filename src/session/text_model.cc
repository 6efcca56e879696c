#include "session/text_model.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "checkpoint/text_settings.h"

namespace quire::session {

namespace {

constexpr std::size_t kTokenizerBytesMax = std::size_t{64} << 20;

Result<tokenizer::Tokenizer> tokenizer_from_gguf(const checkpoint::GgufFile& file) {
  QUIRE_TRY(model, file.string("tokenizer.ggml.model"));
  QUIRE_TRY(pre, file.string_or("tokenizer.ggml.pre", ""));
  QUIRE_TRY(tokens, file.strings("tokenizer.ggml.tokens"));
  std::vector<std::string_view> merges;
  if (file.has("tokenizer.ggml.merges")) {
    QUIRE_TRY(list, file.strings("tokenizer.ggml.merges"));
    merges = std::move(list);
  }
  std::vector<std::int32_t> types(tokens.size(), 1);
  if (file.has("tokenizer.ggml.token_type")) {
    QUIRE_TRY(list, file.integers("tokenizer.ggml.token_type"));
    types.assign(list.begin(), list.end());
  }
  tokenizer::GgufVocabulary vocabulary{
      .model = model, .pre = pre, .tokens = tokens, .types = types, .merges = merges};
  const std::int64_t last = static_cast<std::int64_t>(tokens.size()) - 1;
  for (const auto& [key, id] : {std::pair{"tokenizer.ggml.bos_token_id", &vocabulary.bos},
                                std::pair{"tokenizer.ggml.eos_token_id", &vocabulary.eos}}) {
    if (!file.has(key)) continue;
    QUIRE_TRY(value, file.integer(key, 0, last));
    *id = static_cast<tokenizer::TokenId>(value);
  }
  for (const auto& [key, flag] : {std::pair{"tokenizer.ggml.add_bos_token", &vocabulary.add_bos},
                                  std::pair{"tokenizer.ggml.add_eos_token", &vocabulary.add_eos}}) {
    if (!file.has(key)) continue;
    QUIRE_TRY(value, file.boolean_or(key, false));
    *flag = value;
  }
  return tokenizer::Tokenizer::from_gguf(vocabulary);
}

Result<tokenizer::Tokenizer> tokenizer_from_folder(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  if (!std::filesystem::exists(path)) {
    return bad_input("the model has no tokenizer.json: give the prompt as an array of token ids (--ids)");
  }
  QUIRE_TRY(text, checkpoint::read_text_file(path, kTokenizerBytesMax));
  return tokenizer::Tokenizer::from_json(text);
}

// Clients of a server are told these errors: files are named by their place in the model's folder.
Error without_folder(Error error, const std::string& folder) {
  const std::string prefix = folder + "/";
  for (std::size_t at = error.message.find(prefix); at != std::string::npos;
       at = error.message.find(prefix, at))
    error.message.erase(at, prefix.size());
  return error;
}

template <class Target, class Source>
std::optional<Target> as(const std::optional<Source>& value) {
  if (!value) return std::nullopt;
  return static_cast<Target>(*value);
}

}  // namespace

Result<std::unique_ptr<TextModel>> TextModel::load(const std::string& model) {
  QUIRE_TRY(checkpoint, checkpoint::open_checkpoint(model));
  std::unique_ptr<TextModel> text(new TextModel);
  text->load_tokenizer(*checkpoint);
  QUIRE_TRY_STATUS(text->load_template(*checkpoint));
  QUIRE_TRY_STATUS(text->load_generation(*checkpoint));
  return text;
}

void TextModel::load_tokenizer(const checkpoint::Checkpoint& checkpoint) {
  Result<tokenizer::Tokenizer> loaded = checkpoint.source() == checkpoint::Source::gguf
                                            ? tokenizer_from_gguf(checkpoint.gguf())
                                            : tokenizer_from_folder(checkpoint.folder());
  if (loaded.ok()) {
    tokenizer_ = std::move(loaded).value();
  } else {
    no_tokenizer_ = without_folder(loaded.error(), checkpoint.folder());
  }
}

Status TextModel::load_template(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_TRY(settings, checkpoint::read_text_settings(checkpoint));
  if (!settings.refused.ok()) {
    no_template_ = without_folder(settings.refused.error(), checkpoint.folder());
    return {};
  }
  template_tokens_ = {settings.bos_token, settings.eos_token};
  const checkpoint::ChatTemplate* found = settings.find("default");
  if (found == nullptr && !settings.templates.empty()) found = &settings.templates.front();
  if (found == nullptr) {
    no_template_ =
        bad_input("the model has no chat template: give a prompt instead of messages (-p instead of --chat)");
    return {};
  }
  Result<ChatTemplate> parsed =
      ChatTemplate::parse(found->text, fmt::format("the model's chat template '{}'", found->name));
  if (parsed.ok()) {
    template_ = std::move(parsed).value();
    tool_syntax_ = tool_syntax_of(found->text);
  } else {
    no_template_ = parsed.error();
  }
  return {};
}

Status TextModel::load_generation(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_TRY(read, checkpoint::read_generation_defaults(checkpoint));
  for (const std::int64_t id : read.eos_ids) end_tokens_.push_back(static_cast<std::int32_t>(id));
  defaults_.do_sample = read.do_sample.value_or(false);
  defaults_.temperature = as<float>(read.temperature);
  defaults_.top_p = as<float>(read.top_p);
  defaults_.min_p = as<float>(read.min_p);
  defaults_.repetition_penalty = as<float>(read.repetition_penalty);
  defaults_.top_k = as<std::int32_t>(read.top_k);
  if (end_tokens_.empty() && tokenizer_ && tokenizer_->eos()) end_tokens_.push_back(*tokenizer_->eos());
  return {};
}

Result<const tokenizer::Tokenizer*> TextModel::tokenizer() const {
  if (!tokenizer_) return no_tokenizer_;
  return &*tokenizer_;
}

Result<const ChatTemplate*> TextModel::chat_template() const {
  if (!template_) return no_template_;
  return &*template_;
}

}  // namespace quire::session
