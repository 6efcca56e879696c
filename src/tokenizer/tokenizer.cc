#include "tokenizer/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/spec.h"

namespace quire::tokenizer {
namespace {

std::string stands_for(const std::string& content) {
  auto bytes = chars_to_bytes(content);
  return bytes ? std::move(*bytes) : content;
}

// The vocabulary by content as written; views into `spec`. Refuses what is there twice.
Result<StringTable> index_vocabulary(const TokenizerSpec& spec) {
  StringTable table;
  table.reserve(spec.vocabulary.size() + spec.added.size());
  std::vector<bool> seen;
  for (const auto& [content, id] : spec.vocabulary) {
    if (id < 0) return bad_input(fmt::format("token \"{}\" has no id", content));
    const auto i = static_cast<std::size_t>(id);
    if (i >= seen.size()) seen.resize(std::max(i + 1, spec.vocabulary.size()));
    if (seen[i]) return bad_input(fmt::format("token id {} is there twice in the vocabulary", id));
    seen[i] = true;
    if (!table.insert(content, id))
      return bad_input(fmt::format("token \"{}\" is there twice in the vocabulary", content));
  }
  return table;
}

Result<std::vector<Bpe::Merge>> index_merges(const TokenizerSpec& spec, const StringTable& vocabulary) {
  std::vector<Bpe::Merge> merges;
  merges.reserve(spec.merges.size());
  std::string both;
  for (const auto& [left, right] : spec.merges) {
    both.assign(left).append(right);
    const Bpe::Merge merge{vocabulary.find(left), vocabulary.find(right), vocabulary.find(both)};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
      const std::string& missing = merge.left < 0 ? left : merge.right < 0 ? right : both;
      return bad_input(fmt::format("merge {} needs the token \"{}\", which is not in the vocabulary",
                                   merges.size(), missing.substr(0, 100)));
    }
    merges.push_back(merge);
  }
  return merges;
}

bool is_normalized(const AddedToken& token) { return token.normalized; }

}  // namespace

struct Tokenizer::Impl {
  std::vector<std::string> bytes;  // by id
  std::vector<bool> special;       // by id
  std::vector<AddedToken> added_list;
  StringTable words;      // bytes of vocabulary tokens to id
  StringTable added_ids;  // added tokens by content
  std::vector<TokenId> prefix, suffix;
  std::optional<TokenId> bos, eos;
  std::optional<Bpe> bpe;
  std::optional<Normalizer> normalizer;
  std::optional<PreTokenizer> pre_tokenizer;
  std::optional<AddedTokens> added;
  bool any_normalized = false;

  Status build_tables(TokenizerSpec& spec);
  Status build_added(const TokenizerSpec& spec);
  Status check_ids(const TokenizerSpec& spec) const;
  Status encode_text(std::string_view text, const SpecialFilter& filter, std::vector<TokenId>& out) const;
  Status encode_words(std::string text, std::vector<TokenId>& out) const;
};

Status Tokenizer::Impl::build_tables(TokenizerSpec& spec) {
  QUIRE_TRY(vocabulary, index_vocabulary(spec));
  QUIRE_TRY(merges, index_merges(spec, vocabulary));
  // An added token that the vocabulary holds too has the vocabulary's id.
  std::size_t ids = 0;
  for (AddedToken& token : spec.added) {
    if (const TokenId id = vocabulary.find(token.content); id >= 0) token.id = id;
    ids = std::max(ids, static_cast<std::size_t>(token.id) + 1);
  }
  for (const auto& [content, id] : spec.vocabulary) ids = std::max(ids, static_cast<std::size_t>(id) + 1);
  bytes.resize(ids);
  special.resize(ids);

  std::vector<std::string_view> words_by_id(ids);
  words.reserve(spec.vocabulary.size());
  for (std::size_t i = 0; i < spec.vocabulary.size(); ++i) {
    const auto& [content, id] = spec.vocabulary[i];
    auto decoded = chars_to_bytes(content);
    std::string& slot = bytes[static_cast<std::size_t>(id)];
    slot = decoded ? std::move(*decoded) : content;
    if (decoded) words_by_id[static_cast<std::size_t>(id)] = slot;
  }
  for (std::size_t i = 0; i < ids; ++i) {
    if (!words_by_id[i].empty()) words.insert(words_by_id[i], static_cast<TokenId>(i));
  }
  bpe.emplace(words_by_id, merges, BpeOptions{spec.unknown, spec.fuse_unknown, spec.ignore_merges});
  return {};
}

Status Tokenizer::Impl::build_added(const TokenizerSpec& spec) {
  added_list = spec.added;
  added_ids.reserve(added_list.size());
  std::vector<std::string> looked_for;
  for (const AddedToken& token : added_list) {
    looked_for.push_back(token.content);
    if (token.content.empty()) continue;
    if (!added_ids.insert(token.content, token.id)) {
      return bad_input(fmt::format("added token \"{}\" is there twice", token.content));
    }
    const auto i = static_cast<std::size_t>(token.id);
    bytes[i] = stands_for(token.content);
    special[i] = token.special;
    if (token.normalized && !normalizer->empty()) {
      QUIRE_TRY(text, normalizer->apply(token.content));
      looked_for.back() = std::move(text);
    }
  }
  any_normalized = std::any_of(added_list.begin(), added_list.end(), is_normalized);
  added.emplace(added_list, looked_for);
  return {};
}

Status Tokenizer::Impl::check_ids(const TokenizerSpec& spec) const {
  const auto known = [&](TokenId id) { return id >= 0 && static_cast<std::size_t>(id) < bytes.size(); };
  for (const std::vector<TokenId>* list : {&spec.prefix, &spec.suffix}) {
    for (TokenId id : *list) {
      if (!known(id))
        return bad_input(fmt::format("the post-processor adds token {}, but there are {}", id, bytes.size()));
    }
  }
  for (const std::optional<TokenId>& id : {spec.bos, spec.eos}) {
    if (id && !known(*id))
      return bad_input(fmt::format("BOS or EOS is token {}, but there are {}", *id, bytes.size()));
  }
  return {};
}

namespace {

Result<std::unique_ptr<const Tokenizer::Impl>> build(TokenizerSpec spec) {
  auto impl = std::make_unique<Tokenizer::Impl>();
  QUIRE_TRY(normalizer, Normalizer::create(spec.normalizer));
  impl->normalizer.emplace(std::move(normalizer));
  QUIRE_TRY(pre_tokenizer, PreTokenizer::create(spec.pre_tokenizer));
  impl->pre_tokenizer.emplace(std::move(pre_tokenizer));
  QUIRE_TRY_STATUS(impl->build_tables(spec));
  QUIRE_TRY_STATUS(impl->build_added(spec));
  QUIRE_TRY_STATUS(impl->check_ids(spec));
  impl->prefix = std::move(spec.prefix);
  impl->suffix = std::move(spec.suffix);
  impl->bos = spec.bos;
  impl->eos = spec.eos;
  return std::unique_ptr<const Tokenizer::Impl>(std::move(impl));
}

}  // namespace

Status Tokenizer::Impl::encode_words(std::string text, std::vector<TokenId>& out) const {
  QUIRE_TRY(cut, pre_tokenizer->cut(std::move(text)));
  for (const ByteRange& range : cut.ranges) {
    const std::string_view word = std::string_view(cut.text).substr(range.begin, range.end - range.begin);
    if (!cut.in_alphabet) {
      bpe->encode(word, out);
      continue;
    }
    const auto decoded = chars_to_bytes(word);
    QUIRE_CHECK(decoded.has_value(), "a word of {} bytes left the alphabet", word.size());
    bpe->encode(*decoded, out);
  }
  return {};
}

// Text without the added tokens of the raw text.
Status Tokenizer::Impl::encode_text(std::string_view text, const SpecialFilter& filter,
                                    std::vector<TokenId>& out) const {
  std::string changed(text);
  SpecialFilter inner = filter;
  if (!normalizer->empty()) {
    QUIRE_TRY(result, normalizer->apply(text));
    inner.exact = result == changed;
    changed = std::move(result);
  }
  if (!any_normalized) return encode_words(std::move(changed), out);
  if (!inner.exact) {
    // Offsets are lost: special tokens count only where nothing of this text is plain.
    const auto touches = [&](const ByteRange& r) {
      return r.begin < filter.offset + text.size() && r.end > filter.offset;
    };
    inner.parse = inner.parse && std::none_of(filter.plain.begin(), filter.plain.end(), touches);
    inner.plain = {};
  }
  std::vector<Piece> pieces;
  added->find(changed, true, inner, pieces);
  for (const Piece& piece : pieces) {
    if (piece.id >= 0) {
      out.push_back(piece.id);
    } else {
      QUIRE_TRY_STATUS(
          encode_words(changed.substr(piece.range.begin, piece.range.end - piece.range.begin), out));
    }
  }
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::from_json(std::string_view text) {
  QUIRE_TRY(spec, spec_from_json(text));
  QUIRE_TRY(impl, build(std::move(spec)));
  return Tokenizer(std::move(impl));
}

Result<Tokenizer> Tokenizer::from_gguf(const GgufVocabulary& vocabulary) {
  QUIRE_TRY(spec, spec_from_gguf(vocabulary));
  QUIRE_TRY(impl, build(std::move(spec)));
  return Tokenizer(std::move(impl));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> out;
  if (options.add_special) out = impl_->prefix;
  std::vector<Piece> pieces;
  SpecialFilter filter{options.parse_special, options.plain, 0, true};
  impl_->added->find(text, false, filter, pieces);
  for (const Piece& piece : pieces) {
    if (piece.id >= 0) {
      out.push_back(piece.id);
      continue;
    }
    filter.offset = piece.range.begin;
    QUIRE_TRY_STATUS(
        impl_->encode_text(text.substr(piece.range.begin, piece.range.end - piece.range.begin), filter, out));
  }
  if (options.add_special) out.insert(out.end(), impl_->suffix.begin(), impl_->suffix.end());
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (TokenId id : ids) {
    if (!skip_special || !is_special(id)) bytes += bytes_of(id);
  }
  return lossy_utf8(bytes);
}

std::size_t Tokenizer::vocabulary_size() const { return impl_->bytes.size(); }

std::string_view Tokenizer::bytes_of(TokenId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= impl_->bytes.size()) return {};
  return impl_->bytes[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < impl_->special.size() &&
         impl_->special[static_cast<std::size_t>(id)];
}

std::optional<TokenId> Tokenizer::find(std::string_view content) const {
  TokenId id = impl_->added_ids.find(content);
  if (id < 0) {
    if (const auto bytes = chars_to_bytes(content)) id = impl_->words.find(*bytes);
  }
  return id < 0 ? std::nullopt : std::optional<TokenId>(id);
}

std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }
bool Tokenizer::adds_special() const { return !impl_->prefix.empty() || !impl_->suffix.empty(); }

}  // namespace quire::tokenizer
