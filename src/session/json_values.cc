#include "session/json_values.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace quire::session {
namespace {

using Json = nlohmann::json;

class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(bool mark_input) : mark_input_(mark_input) {}

  jinja::value root;
  std::string error;

  bool null() override { return place(jinja::mk_val<jinja::value_none>()); }
  bool boolean(bool v) override { return place(jinja::mk_val<jinja::value_bool>(v)); }
  bool number_integer(number_integer_t v) override { return place(jinja::mk_val<jinja::value_int>(v)); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return place(jinja::mk_val<jinja::value_float>(static_cast<double>(v)));
    }
    return place(jinja::mk_val<jinja::value_int>(static_cast<std::int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t&) override {
    return place(jinja::mk_val<jinja::value_float>(v));
  }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool string(string_t& v) override { return place(text(v)); }
  bool key(string_t& v) override {
    keys_.back() = text(v);
    return true;
  }
  bool start_object(std::size_t) override { return open(jinja::mk_val<jinja::value_object>()); }
  bool start_array(std::size_t) override { return open(jinja::mk_val<jinja::value_array>()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    return fail(e.what());
  }

 private:
  bool fail(std::string why) {
    error = std::move(why);
    return false;
  }

  jinja::value text(const std::string& v) const {
    auto made = jinja::mk_val<jinja::value_string>(v);
    if (mark_input_) made->mark_input();
    return made;
  }

  bool place(jinja::value v) {
    if (open_.empty()) {
      root = std::move(v);
    } else if (keys_.back()) {
      open_.back()->insert(keys_.back(), v);
    } else {
      static_cast<jinja::value_array_t&>(*open_.back()).push_back(std::move(v));
    }
    return true;
  }

  bool open(jinja::value v) {
    if (open_.size() >= kJsonDepthMax) return fail(fmt::format("nested deeper than {}", kJsonDepthMax));
    place(v);
    open_.push_back(std::move(v));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  bool mark_input_;
  std::vector<jinja::value> open_;
  std::vector<jinja::value> keys_;  // the key that each open object is at; null in arrays
};

}  // namespace

Result<jinja::value> json_to_value(std::string_view json, std::string_view what, bool mark_input) {
  Builder builder(mark_input);
  if (!Json::sax_parse(json.begin(), json.end(), &builder))
    return bad_input(fmt::format("{}: {}", what, builder.error));
  return std::move(builder.root);
}

}  // namespace quire::session
