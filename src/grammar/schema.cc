#include "grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/json_extent.h"

namespace quire::grammar {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 13> kNotEnforced = {
    "not",          "if",       "then",        "else",        "dependentRequired", "dependentSchemas",
    "dependencies", "contains", "minContains", "maxContains", "$dynamicRef",       "$recursiveRef",
    "contentSchema"};
constexpr std::array<std::string_view, 4> kCombining = {"$ref", "anyOf", "oneOf", "allOf"};
// Beside one of kCombining these would be hidden by it.
constexpr std::array<std::string_view, 24> kHidden = {"type",
                                                      "enum",
                                                      "const",
                                                      "properties",
                                                      "required",
                                                      "additionalProperties",
                                                      "patternProperties",
                                                      "propertyNames",
                                                      "unevaluatedProperties",
                                                      "minProperties",
                                                      "maxProperties",
                                                      "items",
                                                      "prefixItems",
                                                      "unevaluatedItems",
                                                      "minItems",
                                                      "maxItems",
                                                      "minLength",
                                                      "maxLength",
                                                      "pattern",
                                                      "minimum",
                                                      "maximum",
                                                      "exclusiveMinimum",
                                                      "exclusiveMaximum",
                                                      "multipleOf"};
constexpr std::array<std::string_view, 6> kCounts = {"minLength", "maxLength",     "minItems",
                                                     "maxItems",  "minProperties", "maxProperties"};

// Without a type these are read as rules for any value, that is not at all, unless one of the other list says
// by its name what the value is.
struct Untyped {
  std::span<const std::string_view> rules;
  std::span<const std::string_view> imply;
};
constexpr std::array<std::string_view, 5> kOfObjects = {"required", "minProperties", "maxProperties",
                                                        "patternProperties", "propertyNames"};
constexpr std::array<std::string_view, 3> kImplyObject = {"properties", "additionalProperties",
                                                          "unevaluatedProperties"};
constexpr std::array<std::string_view, 2> kOfArrays = {"minItems", "maxItems"};
constexpr std::array<std::string_view, 3> kImplyArray = {"items", "prefixItems", "unevaluatedItems"};
constexpr std::array<std::string_view, 8> kOfScalars = {"minLength",        "maxLength", "pattern",
                                                        "minimum",          "maximum",   "exclusiveMinimum",
                                                        "exclusiveMaximum", "multipleOf"};
constexpr std::array<Untyped, 3> kUntyped = {
    {{kOfObjects, kImplyObject}, {kOfArrays, kImplyArray}, {kOfScalars, {}}}};
constexpr std::array<std::string_view, 4> kBounds = {"minimum", "maximum", "exclusiveMinimum",
                                                     "exclusiveMaximum"};

bool has_any(const Json& value, std::span<const std::string_view> keywords) {
  return std::any_of(keywords.begin(), keywords.end(),
                     [&](std::string_view keyword) { return value.contains(keyword); });
}

// What of a regular expression an answer cannot be held to, for it would be dropped without a word. That is
// of anchors those which are not at an end of all that is matched: an answer is the whole of it in any case.
class Pattern {
 public:
  explicit Pattern(std::string_view text) : text_(text) {}

  // Empty: nothing.
  std::string_view not_enforced() {
    for (std::size_t i = 0; i < text_.size();) {
      std::size_t size = 1;
      const std::string_view dropped = step(i, size);
      if (!dropped.empty()) return dropped;
      i += size;
    }
    return "";
  }

 private:
  static constexpr std::string_view kBegin = "^ but at its begin";
  static constexpr std::string_view kEnd = "$ but at its end";

  // Of a group, or of the whole.
  struct Group {
    bool may_begin = true;   // nothing comes before the group
    bool empty = true;       // nothing yet in this alternative
    bool ended = false;      // this alternative has its $
    bool any_ended = false;  // one of the alternatives has
    bool any_begun = false;  // one of them has its ^
  };

  // What begins at `i`, and its size.
  std::string_view step(std::size_t i, std::size_t& size) {
    const char letter = text_[i];
    if (letter == '\\') {
      size = 2;
      if (i + 1 < text_.size() && unknown_.find(text_[i + 1]) != std::string_view::npos)
        return text_.substr(i, 2);
      return in_class_ ? "" : something();
    }
    if (in_class_) {
      if (letter == ']') {
        in_class_ = false;
        unknown_ = kUnknown;
      }
      return "";
    }
    switch (letter) {
      case '[':
        in_class_ = true;
        unknown_ = kUnknownInClass;
        return something();
      case '(':
        return open(i, size);
      case ')':
        return close(i);
      case '|':
        groups_.back().empty = true;
        groups_.back().ended = false;
        return "";
      case '^':
        groups_.back().any_begun = true;
        return groups_.back().may_begin && groups_.back().empty && !groups_.back().ended ? "" : kBegin;
      case '$':
        groups_.back().ended = groups_.back().any_ended = true;
        return "";
      default:
        return something();
    }
  }

  std::string_view open(std::size_t i, std::size_t& size) {
    if (text_.substr(i, 2) == "(?") {
      const std::string_view three = text_.substr(i, 3);
      const std::string_view four = text_.substr(i, 4);
      const bool named = three == "(?<" && four != "(?<=" && four != "(?<!";
      if (three != "(?:" && !named) return four.substr(0, three == "(?<" ? 4 : 3);
      const std::size_t name_end = named ? text_.find('>', i) : i + 2;
      size = std::min(name_end, text_.size() - 1) + 1 - i;
    }
    const bool may_begin = groups_.back().may_begin && groups_.back().empty;
    const std::string_view dropped = something();
    groups_.push_back({.may_begin = may_begin});
    return dropped;
  }

  std::string_view close(std::size_t i) {
    if (groups_.size() == 1) return "";  // not ours to say
    const Group group = groups_.back();
    groups_.pop_back();
    groups_.back().ended |= group.any_ended;
    groups_.back().any_ended |= group.any_ended;
    groups_.back().any_begun |= group.any_begun;
    const bool repeated = i + 1 < text_.size() && std::string_view("*+{").find(text_[i + 1]) < 3;
    return repeated && group.any_begun ? kBegin : "";
  }

  // In the alternative comes something that matches, or a count of it.
  std::string_view something() {
    groups_.back().empty = false;
    return groups_.back().ended ? kEnd : "";
  }

  static constexpr std::string_view kUnknown = "bBkpP123456789";
  static constexpr std::string_view kUnknownInClass = "pP";

  std::string_view text_;
  std::string_view unknown_ = kUnknown;
  bool in_class_ = false;
  std::vector<Group> groups_ = std::vector<Group>(1);
};

Status check_pattern(const std::string& pattern, const std::string& at) {
  if (pattern.size() > kPatternBytesMax)
    return bad_input(fmt::format("{} is over {} bytes", at, kPatternBytesMax));
  const std::string_view dropped = Pattern(pattern).not_enforced();
  if (dropped.empty()) return {};
  return bad_input(fmt::format("{}: an answer cannot be held to {}: write it without", at, dropped));
}

// One walk over a schema, which is at `root`; `at` is the place for messages, as a JSON pointer. `named`: it
// is of names, which are strings.
class Check {
 public:
  explicit Check(std::string_view root) : root_(root) {}
  Status schema(const Json& value, const std::string& at, bool named = false) {
    if (value.is_boolean()) return {};
    if (!value.is_object())
      return bad_input(fmt::format("{} is no schema: use an object, true or false", at));
    if (++nodes_ > kSchemaNodesMax)
      return bad_input(fmt::format("{} holds over {} schemas: use a smaller one", root_, kSchemaNodesMax));
    QUIRE_TRY_STATUS(keywords(value, at));
    if (!named) QUIRE_TRY_STATUS(untyped(value, at));
    return children(value, at);
  }

 private:
  static Status keywords(const Json& value, const std::string& at) {
    for (const std::string_view keyword : kNotEnforced) {
      if (value.contains(keyword))
        return bad_input(
            fmt::format("{}/{}: an answer cannot be held to this keyword: leave it out", at, keyword));
    }
    if (value.contains("uniqueItems") && value["uniqueItems"] != false)
      return bad_input(fmt::format("{}/uniqueItems: an answer cannot be held to it: leave it out", at));
    if (value.contains("allOf") && value["allOf"].is_array() && value["allOf"].size() > 1)
      return bad_input(fmt::format("{}/allOf has {} schemas: write them as one", at, value["allOf"].size()));
    QUIRE_TRY_STATUS(combining(value, at));
    QUIRE_TRY_STATUS(multiple(value, at));
    if (value.contains("$ref")) {
      const Json& target = value["$ref"];
      if (!target.is_string() || !(target == "#" || target.get_ref<const std::string&>().starts_with("#/")))
        return bad_input(
            fmt::format("{}/$ref: only what begins with #/ can be found, in the schema itself", at));
    }
    const bool lengths = value.contains("minLength") || value.contains("maxLength");
    for (const std::string_view other : {"pattern", "format"}) {
      if (lengths && value.contains(other))
        return bad_input(fmt::format("{}: {} hides minLength and maxLength: use one of them", at, other));
    }
    if (value.contains("pattern") && value["pattern"].is_string())
      QUIRE_TRY_STATUS(check_pattern(value["pattern"].get_ref<const std::string&>(), at + "/pattern"));
    return counts(value, at);
  }

  static Status combining(const Json& value, const std::string& at) {
    std::string_view one;
    for (const std::string_view keyword : kCombining) {
      if (!value.contains(keyword)) continue;
      if (!one.empty()) return bad_input(fmt::format("{}: {} hides {}: use one of them", at, one, keyword));
      if (value[keyword].is_array() && value[keyword].empty())
        return bad_input(fmt::format("{}/{} is empty: nothing could be an answer", at, keyword));
      one = keyword;
    }
    if (one.empty()) return {};
    for (const std::string_view keyword : kHidden) {
      if (value.contains(keyword))
        return bad_input(
            fmt::format("{}: {} hides {}: put it into the schemas that {} names", at, one, keyword, one));
    }
    return {};
  }

  static Status untyped(const Json& value, const std::string& at) {
    if (has_any(value, std::array<std::string_view, 3>{"type", "enum", "const"})) return {};
    for (const Untyped& kind : kUntyped) {
      if (has_any(value, kind.imply)) continue;
      for (const std::string_view keyword : kind.rules) {
        if (value.contains(keyword))
          return bad_input(
              fmt::format("{}/{}: an answer is held to it only beside a type: name it", at, keyword));
      }
    }
    return {};
  }

  // Beside bounds, of other numbers and by large ones it would be dropped without a word.
  static Status multiple(const Json& value, const std::string& at) {
    if (!value.contains("multipleOf") || has_any(value, std::array<std::string_view, 2>{"enum", "const"}))
      return {};
    const Json& of = value["multipleOf"];
    if (!value.contains("type") || value["type"] != "integer" || !of.is_number_integer() || of < 1 ||
        of > kMultipleMax || has_any(value, kBounds))
      return bad_input(fmt::format(
          "{}/multipleOf: an answer is held to it only with type integer, 1 to {}, and no bounds beside it",
          at, kMultipleMax));
    return {};
  }

  static Status counts(const Json& value, const std::string& at) {
    for (const std::string_view keyword : kCounts) {
      if (!value.contains(keyword)) continue;
      const Json& count = value[keyword];
      if (!count.is_number_integer() || count < 0 || count > kRepetitionsMax)
        return bad_input(fmt::format("{}/{} is {}: use 0 to {}", at, keyword, count.dump(), kRepetitionsMax));
    }
    return {};
  }

  Status children(const Json& value, const std::string& at) {
    for (const std::string_view one :
         {"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"}) {
      if (value.contains(one) && !value[one].is_array())
        QUIRE_TRY_STATUS(schema(value[one], fmt::format("{}/{}", at, one), one == "propertyNames"));
    }
    for (const std::string_view list : {"items", "prefixItems", "anyOf", "oneOf", "allOf"}) {
      if (!value.contains(list) || !value[list].is_array()) continue;
      for (std::size_t i = 0; i < value[list].size(); ++i)
        QUIRE_TRY_STATUS(schema(value[list][i], fmt::format("{}/{}/{}", at, list, i)));
    }
    for (const std::string_view map : {"properties", "patternProperties", "$defs", "definitions"}) {
      if (!value.contains(map)) continue;
      if (!value[map].is_object()) return bad_input(fmt::format("{}/{} must be an object", at, map));
      for (const auto& [name, inner] : value[map].items()) {
        if (map == "patternProperties") QUIRE_TRY_STATUS(check_pattern(name, fmt::format("{}/{}", at, map)));
        QUIRE_TRY_STATUS(schema(inner, fmt::format("{}/{}/{}", at, map, name)));
      }
    }
    return {};
  }

  std::string_view root_;
  std::size_t nodes_ = 0;
};

}  // namespace

Status check_schema(std::string_view schema, std::string_view root) {
  const std::size_t depth = json_extent(schema).depth;
  if (depth > kSchemaDepthMax)
    return bad_input(fmt::format("{} is {} levels deep: at most {}", root, depth, kSchemaDepthMax));
  const Json json = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return bad_input(fmt::format("{} is not JSON", root));
  return Check(root).schema(json, std::string(root));
}

}  // namespace quire::grammar
