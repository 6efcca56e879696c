// TokenizerSpec from tokenizer.json.
#include "tokenizer/json_reader.h"

#include <fmt/core.h>

namespace quire::tokenizer {
namespace {

Error refused(std::string_view part, std::string_view name, std::string_view supported) {
  return bad_input(fmt::format("tokenizer {} {} is not supported; supported: {}", part, name, supported));
}

Error malformed(std::string_view what) { return bad_input(fmt::format("tokenizer.json: {}", what)); }

const Json& member(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto it = object.find(name);
  return it == object.end() ? none : *it;
}

std::string text_or(const Json& value, std::string_view other) {
  return value.is_string() ? value.get<std::string>() : std::string(other);
}

bool flag_or(const Json& value, bool other) { return value.is_boolean() ? value.get<bool>() : other; }

std::string type_of(const Json& object) { return text_or(member(object, "type"), "without a type"); }

Result<TokenId> id_of(const Json& value, std::string_view what) {
  if (!value.is_number_integer() || value < 0 || value >= kIdsMax) {
    return malformed(fmt::format("{} is not an id in 0..{}", what, kIdsMax - 1));
  }
  return value.get<TokenId>();
}

// {"String": s} or {"Regex": s}
Status read_pattern(const Json& pattern, std::string& out, bool& is_regex) {
  const Json& regex = member(pattern, "Regex");
  const Json& text = member(pattern, "String");
  if (!regex.is_string() && !text.is_string()) return malformed("a pattern is neither Regex nor String");
  is_regex = regex.is_string();
  out = (is_regex ? regex : text).get<std::string>();
  return {};
}

template <class Steps>
Status check_steps(const Steps& steps, std::string_view what) {
  if (steps.size() <= kStepsMax) return {};
  return malformed(fmt::format("the {} has over {} steps", what, kStepsMax));
}

Status read_model(TokenizerFile& file, TokenizerSpec& spec) {
  const Json& model = member(file.tree, "model");
  const std::string type = text_or(member(model, "type"), file.has_vocabulary ? "BPE" : "without a type");
  if (type != "BPE") return refused("model", type, "BPE with byte level");
  if (!file.has_vocabulary) return malformed("the model has no vocab");
  if (!file.has_merges) return malformed("the model has no list of merges");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_or(member(model, name), "").empty()) return refused("model option", name, "BPE without it");
  }
  const Json& dropout = member(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() > 0)
    return refused("model option", "dropout", "BPE without it");
  spec.ignore_merges = flag_or(member(model, "ignore_merges"), false);
  spec.fuse_unknown = flag_or(member(model, "fuse_unk"), false);
  spec.vocabulary = std::move(file.vocabulary);
  spec.merges = std::move(file.merges);
  const Json& unknown = member(model, "unk_token");
  if (unknown.is_string()) {
    for (const auto& [content, id] : spec.vocabulary) {
      if (content == unknown.get_ref<const std::string&>()) spec.unknown = id;
    }
    if (spec.unknown < 0) return malformed("unk_token is not in the vocabulary");
  }
  return {};
}

Status read_added(const Json& tokens, TokenizerSpec& spec) {
  if (tokens.is_null()) return {};
  if (!tokens.is_array()) return malformed("added_tokens is not a list");
  if (tokens.size() > kAddedMax) return malformed(fmt::format("over {} added tokens", kAddedMax));
  for (const Json& t : tokens) {
    AddedToken token;
    QUIRE_TRY(id, id_of(member(t, "id"), "the id of an added token"));
    token.id = id;
    token.content = text_or(member(t, "content"), "");
    if (token.content.size() > kAddedBytesMax) {
      return malformed(fmt::format("added token {} has over {} bytes", token.id, kAddedBytesMax));
    }
    token.special = flag_or(member(t, "special"), false);
    token.normalized = flag_or(member(t, "normalized"), !token.special);
    token.single_word = flag_or(member(t, "single_word"), false);
    token.lstrip = flag_or(member(t, "lstrip"), false);
    token.rstrip = flag_or(member(t, "rstrip"), false);
    spec.added.push_back(std::move(token));
  }
  return {};
}

Status read_normalizer(const Json& n, std::vector<NormalizerStep>& steps) {
  if (n.is_null()) return {};
  const std::string type = type_of(n);
  NormalizerStep step;
  if (type == "Sequence") {
    for (const Json& part : member(n, "normalizers")) QUIRE_TRY_STATUS(read_normalizer(part, steps));
    return check_steps(steps, "normalizer");
  }
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.form = type == "NFC"    ? NormalForm::nfc
                : type == "NFD"  ? NormalForm::nfd
                : type == "NFKC" ? NormalForm::nfkc
                                 : NormalForm::nfkd;
  } else if (type == "Lowercase") {
    step.kind = NormalizerStep::Kind::lowercase;
  } else if (type == "Prepend") {
    step.kind = NormalizerStep::Kind::prepend;
    step.content = text_or(member(n, "prepend"), "");
  } else if (type == "Replace") {
    bool is_regex = false;
    QUIRE_TRY_STATUS(read_pattern(member(n, "pattern"), step.pattern, is_regex));
    step.kind = is_regex ? NormalizerStep::Kind::replace_regex : NormalizerStep::Kind::replace_text;
    step.content = text_or(member(n, "content"), "");
  } else {
    return refused("normalizer", type, "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Sequence");
  }
  steps.push_back(std::move(step));
  return {};
}

Result<SplitBehavior> behavior_of(const Json& value) {
  const std::string name = text_or(value, "");
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  return malformed(fmt::format("split behavior \"{}\" is not known", name));
}

Status read_pre_tokenizer(const Json& p, std::vector<PreStep>& steps) {
  if (p.is_null()) return {};
  const std::string type = type_of(p);
  PreStep step;
  if (type == "Sequence") {
    for (const Json& part : member(p, "pretokenizers")) QUIRE_TRY_STATUS(read_pre_tokenizer(part, steps));
    return check_steps(steps, "pre-tokenizer");
  }
  if (type == "Split" || type == "Punctuation") {
    QUIRE_TRY(behavior, behavior_of(member(p, "behavior")));
    step.behavior = behavior;
    step.kind = PreStep::Kind::punctuation;
    if (type == "Split") {
      bool is_regex = false;
      QUIRE_TRY_STATUS(read_pattern(member(p, "pattern"), step.pattern, is_regex));
      step.kind = is_regex ? PreStep::Kind::regex : PreStep::Kind::text;
      step.invert = flag_or(member(p, "invert"), false);
    }
  } else if (type == "Digits") {
    step.kind = PreStep::Kind::digits;
    step.behavior =
        flag_or(member(p, "individual_digits"), false) ? SplitBehavior::isolated : SplitBehavior::contiguous;
  } else if (type == "ByteLevel") {
    step.kind = PreStep::Kind::byte_level;
    step.add_prefix_space = flag_or(member(p, "add_prefix_space"), true);
    step.use_regex = flag_or(member(p, "use_regex"), true);
  } else {
    return refused("pre-tokenizer", type, "Split, Digits, Punctuation, ByteLevel, Sequence");
  }
  steps.push_back(std::move(step));
  return {};
}

Status read_template(const Json& p, TokenizerSpec& spec) {
  const Json& single = member(p, "single");
  if (!single.is_array()) return malformed("TemplateProcessing has no list \"single\"");
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  bool text_seen = false;
  for (const Json& piece : single) {
    if (piece.is_object() && piece.contains("Sequence")) {
      if (text_seen) return refused("template", "with the text twice", "TemplateProcessing with it once");
      text_seen = true;
      continue;
    }
    const std::string name = text_or(member(member(piece, "SpecialToken"), "id"), "");
    const Json& ids = member(member(member(p, "special_tokens"), name.c_str()), "ids");
    if (!ids.is_array()) return malformed(fmt::format("the template's token \"{}\" has no ids", name));
    for (const Json& value : ids) {
      QUIRE_TRY(id, id_of(value, "a template's token"));
      (text_seen ? suffix : prefix).push_back(id);
    }
  }
  if (!text_seen) return refused("template", "without the text", "TemplateProcessing with it once");
  spec.prefix.insert(spec.prefix.begin(), prefix.begin(), prefix.end());
  spec.suffix.insert(spec.suffix.end(), suffix.begin(), suffix.end());
  return {};
}

Status read_post_processor(const Json& p, TokenizerSpec& spec) {
  if (p.is_null()) return {};
  const std::string type = type_of(p);
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "TemplateProcessing") return read_template(p, spec);
  if (type == "Sequence") {
    for (const Json& part : member(p, "processors")) QUIRE_TRY_STATUS(read_post_processor(part, spec));
    if (spec.prefix.size() + spec.suffix.size() <= kStepsMax) return {};
    return malformed(fmt::format("the post-processor adds over {} tokens", kStepsMax));
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    const Json& cls = member(p, "cls");
    const Json& sep = member(p, "sep");
    if (!cls.is_array() || cls.size() != 2 || !sep.is_array() || sep.size() != 2)
      return malformed("cls or sep is not a pair");
    QUIRE_TRY(first, id_of(cls[1], "cls"));
    QUIRE_TRY(last, id_of(sep[1], "sep"));
    spec.prefix.insert(spec.prefix.begin(), first);
    spec.suffix.push_back(last);
    return {};
  }
  return refused("post-processor", type, "TemplateProcessing, RobertaProcessing, ByteLevel, Sequence");
}

Status check_decoder(const Json& d) {
  if (d.is_null()) return {};
  const std::string type = type_of(d);
  if (type == "ByteLevel" || type == "Fuse") return {};
  if (type != "Sequence") return refused("decoder", type, "ByteLevel, Fuse, Sequence");
  for (const Json& part : member(d, "decoders")) QUIRE_TRY_STATUS(check_decoder(part));
  return {};
}

}  // namespace

Result<TokenizerSpec> spec_from_json(std::string_view text) {
  QUIRE_TRY(file, read_tokenizer_file(text));
  TokenizerSpec spec;
  QUIRE_TRY_STATUS(read_model(file, spec));
  QUIRE_TRY_STATUS(read_pre_tokenizer(member(file.tree, "pre_tokenizer"), spec.pre_tokenizer));
  int byte_levels = 0;
  for (const PreStep& step : spec.pre_tokenizer) byte_levels += step.kind == PreStep::Kind::byte_level;
  if (byte_levels != 1) {
    return refused("model",
                   byte_levels == 0 ? "BPE without a ByteLevel pre-tokenizer (SentencePiece style)"
                                    : "BPE with two ByteLevels",
                   "BPE with byte level");
  }
  QUIRE_TRY_STATUS(read_added(member(file.tree, "added_tokens"), spec));
  QUIRE_TRY_STATUS(read_normalizer(member(file.tree, "normalizer"), spec.normalizer));
  QUIRE_TRY_STATUS(read_post_processor(member(file.tree, "post_processor"), spec));
  QUIRE_TRY_STATUS(check_decoder(member(file.tree, "decoder")));
  return spec;
}

}  // namespace quire::tokenizer
