#include "tokenizer/json_reader.h"

#include <fmt/core.h>

namespace quire::tokenizer {
namespace {

constexpr std::size_t kDepthMax = 64;
constexpr std::size_t kTreeValuesMax = 8 << 20;

// Where the parser is.
enum class Mode { tree, vocabulary, merges, merge_pair };

class Reader : public nlohmann::json_sax<Json> {
 public:
  TokenizerFile file;
  std::string error;

  bool null() override { return scalar(Json(nullptr)); }
  bool boolean(bool value) override { return scalar(Json(value)); }
  bool number_integer(number_integer_t value) override { return number(value); }
  bool number_unsigned(number_unsigned_t value) override { return number(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(Json(value)); }
  bool binary(binary_t&) override { return fail("binary value"); }

  bool string(string_t& value) override {
    if (mode_ == Mode::merges) return merge_line(value);
    if (mode_ == Mode::merge_pair) {
      if (pair_size_ >= 2) return fail("a merge has more than two parts");
      (pair_size_++ == 0 ? file.merges.back().first : file.merges.back().second) = std::move(value);
      return true;
    }
    return scalar(Json(std::move(value)));
  }

  bool key(string_t& value) override {
    if (mode_ == Mode::vocabulary) {
      if (file.vocabulary.size() >= kIdsMax) return fail(fmt::format("over {} tokens", kIdsMax));
      file.vocabulary.emplace_back(std::move(value), -1);
    } else {
      keys_.back() = std::move(value);
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (mode_ != Mode::tree) return fail("an object where a token id or a merge should be");
    if (at_model_key("vocab")) {
      if (file.has_vocabulary) return fail("model.vocab is there twice");
      file.has_vocabulary = true;
      mode_ = Mode::vocabulary;
      return true;
    }
    return open(Json::object());
  }
  bool end_object() override {
    if (mode_ == Mode::vocabulary) {
      mode_ = Mode::tree;
      return true;
    }
    return close();
  }

  bool start_array(std::size_t) override {
    if (mode_ == Mode::merges) {
      if (!new_merge()) return false;
      pair_size_ = 0;
      mode_ = Mode::merge_pair;
      return true;
    }
    if (mode_ != Mode::tree) return fail("a list where a token or its id should be");
    if (at_model_key("merges")) {
      if (file.has_merges) return fail("model.merges is there twice");
      file.has_merges = true;
      mode_ = Mode::merges;
      return true;
    }
    return open(Json::array());
  }
  bool end_array() override {
    if (mode_ == Mode::merge_pair) {
      if (pair_size_ != 2) return fail("a merge has fewer than two parts");
      mode_ = Mode::merges;
      return true;
    }
    if (mode_ == Mode::merges) {
      mode_ = Mode::tree;
      return true;
    }
    return close();
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    return fail(fmt::format("not JSON at byte {}: {}", position, e.what()));
  }

 private:
  bool fail(std::string why) {
    error = std::move(why);
    return false;
  }

  bool at_model_key(std::string_view name) const {
    return keys_.size() == 2 && keys_[0] == "model" && keys_[1] == name;
  }

  bool new_merge() {
    if (file.merges.size() >= kMergesMax) return fail(fmt::format("over {} merges", kMergesMax));
    file.merges.emplace_back();
    return true;
  }

  bool merge_line(const std::string& line) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      return fail(fmt::format("merge \"{}\" is not two tokens with a space between", line.substr(0, 100)));
    }
    if (!new_merge()) return false;
    file.merges.back() = {line.substr(0, space), line.substr(space + 1)};
    return true;
  }

  template <class Number>
  bool number(Number value) {
    if (mode_ != Mode::vocabulary) return scalar(Json(value));
    if (value < Number{0} || static_cast<std::uint64_t>(value) >= kIdsMax) {
      return fail(fmt::format("token id {} is outside 0..{}", value, kIdsMax - 1));
    }
    file.vocabulary.back().second = static_cast<TokenId>(value);
    return true;
  }

  bool scalar(Json value) {
    if (mode_ == Mode::vocabulary) return fail("a token id is not a number");
    if (mode_ != Mode::tree) return fail("a merge is neither a pair nor a text");
    return place(std::move(value)) != nullptr;
  }

  // Puts a value where the parser is; null after fail().
  Json* place(Json value) {
    if (++values_ > kTreeValuesMax) {
      fail(fmt::format("over {} values", kTreeValuesMax));
      return nullptr;
    }
    if (open_.empty()) {
      file.tree = std::move(value);
      return &file.tree;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    const auto [it, fresh] = parent.emplace(keys_.back(), std::move(value));
    if (!fresh) {
      fail(fmt::format("key \"{}\" is there twice", keys_.back().substr(0, 100)));
      return nullptr;
    }
    return &*it;
  }

  bool open(Json value) {
    if (open_.size() >= kDepthMax) return fail(fmt::format("nested deeper than {}", kDepthMax));
    Json* placed = place(std::move(value));
    if (!placed) return false;
    open_.push_back(placed);
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  Mode mode_ = Mode::tree;
  std::vector<Json*> open_;        // a parent does not grow while a child is open, so these stay valid
  std::vector<std::string> keys_;  // the key that each open object is at
  int pair_size_ = 0;
  std::size_t values_ = 0;
};

}  // namespace

Result<TokenizerFile> read_tokenizer_file(std::string_view text) {
  if (text.size() > kFileBytesMax) {
    return bad_input(
        fmt::format("tokenizer.json has {} bytes, over the limit of {}", text.size(), kFileBytesMax));
  }
  Reader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader))
    return bad_input("tokenizer.json: " + reader.error);
  if (!reader.file.tree.is_object()) return bad_input("tokenizer.json is not an object");
  return std::move(reader.file);
}

}  // namespace quire::tokenizer
