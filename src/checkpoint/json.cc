#include "checkpoint/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/mapped_file.h"
#include "checkpoint/printable.h"

namespace quire::checkpoint {
namespace {

using nlohmann::json;

// Builds the tree from parse events, so that limits hold before memory is taken. The parser that drives it
// keeps its own stack: no recursion.
class BoundedBuilder {
 public:
  BoundedBuilder(const JsonLimits& limits, json* root) : limits_(limits), root_(root) {}

  const std::string& problem() const { return problem_; }

  bool null() { return add(json(nullptr)) != nullptr; }
  bool boolean(bool value) { return add(json(value)) != nullptr; }
  bool number_integer(json::number_integer_t value) { return add(json(value)) != nullptr; }
  bool number_unsigned(json::number_unsigned_t value) { return add(json(value)) != nullptr; }
  bool number_float(json::number_float_t value, const std::string&) { return add(json(value)) != nullptr; }
  bool string(std::string& value) { return add(json(std::move(value))) != nullptr; }
  bool binary(json::binary_t&) { return refuse("binary values"); }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& value) {
    const auto [place, fresh] = stack_.back()->get_ref<json::object_t&>().emplace(std::move(value), nullptr);
    if (!fresh)
      return refuse(fmt::format("the key \"{}\" stands twice in one object", printable(place->first)));
    slot_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception&) {
    return refuse(fmt::format("not valid JSON at byte {}, near \"{}\"", position, printable(token)));
  }

 private:
  bool refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }
  // Where the next value goes: the root, the slot of the last key, or a new entry of the open array.
  json* add(json value) {
    if (++nodes_ > limits_.nodes) {
      refuse(fmt::format("more than {} values", limits_.nodes));
      return nullptr;
    }
    json* place = root_;
    if (!stack_.empty() && stack_.back()->is_array()) {
      place = &stack_.back()->get_ref<json::array_t&>().emplace_back();
    } else if (!stack_.empty()) {
      place = slot_;
    }
    *place = std::move(value);
    return place;
  }
  bool open(json value) {
    if (stack_.size() >= limits_.depth)
      return refuse(fmt::format("nested deeper than {} levels", limits_.depth));
    json* place = add(std::move(value));
    if (place == nullptr) return false;
    stack_.push_back(place);
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  json* root_;
  json* slot_ = nullptr;
  std::vector<json*> stack_;
  std::size_t nodes_ = 0;
  std::string problem_;
};

std::string found(const json& value) { return fmt::format("found {}", value.type_name()); }

Error wrong(const std::string& where, std::string_view key, std::string_view wanted, const json& value) {
  return bad_input(fmt::format("{}: {} must be {}, {}", where, printable(key), wanted, found(value)));
}

Error missing(const std::string& where, std::string_view key) {
  return bad_input(fmt::format("{}: the key {} is missing", where, printable(key)));
}

// A whole number from any numeric spelling of it.
std::optional<std::int64_t> whole(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) < 9e15) || number != std::floor(number)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

}  // namespace

Status parse_json(std::string_view text, std::string_view name, const JsonLimits& limits, json* out) {
  *out = nullptr;
  if (text.size() > limits.bytes) {
    return bad_input(
        fmt::format("{} has {} bytes of JSON, over the limit of {}", name, text.size(), limits.bytes));
  }
  json tree;
  BoundedBuilder builder(limits, &tree);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return bad_input(fmt::format("{}: {}", name, builder.problem()));
  }
  *out = std::move(tree);
  return {};
}

const json* JsonView::find(std::string_view key) const {
  const auto& object = node_->get_ref<const json::object_t&>();
  const auto place = object.find(key);
  return place == object.end() || place->second.is_null() ? nullptr : &place->second;
}

bool JsonView::has(std::string_view key) const { return find(key) != nullptr; }

bool JsonView::is_null(std::string_view key) const {
  const auto& object = node_->get_ref<const json::object_t&>();
  const auto place = object.find(key);
  return place != object.end() && place->second.is_null();
}

bool JsonView::is_object(std::string_view key) const { return has(key) && find(key)->is_object(); }
bool JsonView::is_string(std::string_view key) const { return has(key) && find(key)->is_string(); }
bool JsonView::is_array(std::string_view key) const { return has(key) && find(key)->is_array(); }

std::vector<std::string> JsonView::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : node_->get_ref<const json::object_t&>()) names.push_back(name);
  return names;
}

Result<std::int64_t> JsonView::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const json* value = find(key);
  if (value == nullptr) return missing(where_, key);
  const auto number = whole(*value);
  if (!number && !value->is_number()) return wrong(where_, key, "a whole number", *value);
  if (!number || *number < low || *number > high) {
    return bad_input(fmt::format("{}: {} is {}, but must be a whole number from {} to {}", where_,
                                 printable(key), value->dump(), low, high));
  }
  return *number;
}

Result<std::int64_t> JsonView::integer_or(std::string_view key, std::int64_t fallback, std::int64_t low,
                                          std::int64_t high) const {
  if (!has(key)) return fallback;
  return integer(key, low, high);
}

Result<double> JsonView::number(std::string_view key, double low, double high) const {
  const json* value = find(key);
  if (value == nullptr) return missing(where_, key);
  if (!value->is_number()) return wrong(where_, key, "a number", *value);
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    return bad_input(fmt::format("{}: {} is {}, but must be from {} to {}", where_, printable(key),
                                 value->dump(), low, high));
  }
  return number;
}

Result<double> JsonView::number_or(std::string_view key, double fallback, double low, double high) const {
  if (!has(key)) return fallback;
  return number(key, low, high);
}

Result<bool> JsonView::boolean_or(std::string_view key, bool fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return wrong(where_, key, "true or false", *value);
  return value->get<bool>();
}

Result<std::string> JsonView::string(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return missing(where_, key);
  if (!value->is_string()) return wrong(where_, key, "a string", *value);
  return value->get<std::string>();
}

Result<std::string> JsonView::string_or(std::string_view key, std::string_view fallback) const {
  if (!has(key)) return std::string(fallback);
  return string(key);
}

Result<JsonView> JsonView::object(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return missing(where_, key);
  if (!value->is_object()) return wrong(where_, key, "an object", *value);
  return JsonView(value, fmt::format("{}: {}", where_, printable(key)));
}

namespace {

Result<const json*> list_of(const json* value, const std::string& where, std::string_view key,
                            std::size_t most) {
  if (value == nullptr) return missing(where, key);
  if (!value->is_array()) return wrong(where, key, "a list", *value);
  if (value->size() > most) {
    return bad_input(fmt::format("{}: {} has {} entries, over the limit of {}", where, printable(key),
                                 value->size(), most));
  }
  return value;
}

}  // namespace

Result<std::vector<std::string>> JsonView::strings(std::string_view key, std::size_t most) const {
  QUIRE_TRY(list, list_of(find(key), where_, key, most));
  std::vector<std::string> out;
  for (const json& entry : *list) {
    if (!entry.is_string()) return wrong(where_, key, "a list of strings", entry);
    out.push_back(entry.get<std::string>());
  }
  return out;
}

Result<std::vector<std::int64_t>> JsonView::integers(std::string_view key, std::size_t most) const {
  const json* value = find(key);
  if (value != nullptr && value->is_number()) {
    const auto number = whole(*value);
    if (!number) return wrong(where_, key, "a whole number or a list of them", *value);
    return std::vector<std::int64_t>{*number};
  }
  QUIRE_TRY(list, list_of(value, where_, key, most));
  std::vector<std::int64_t> out;
  for (const json& entry : *list) {
    const auto number = whole(entry);
    if (!number) return wrong(where_, key, "a list of whole numbers", entry);
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<JsonView>> JsonView::objects(std::string_view key, std::size_t most) const {
  QUIRE_TRY(list, list_of(find(key), where_, key, most));
  std::vector<JsonView> out;
  for (const json& entry : *list) {
    if (!entry.is_object()) return wrong(where_, key, "a list of objects", entry);
    out.emplace_back(&entry, fmt::format("{}: {}[{}]", where_, printable(key), out.size()));
  }
  return out;
}

JsonDocument::JsonDocument(std::unique_ptr<json> tree, std::string name)
    : tree_(std::move(tree)), name_(std::move(name)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Result<JsonDocument> JsonDocument::parse(std::string_view text, std::string_view name,
                                         const JsonLimits& limits) {
  auto tree = std::make_unique<json>();
  QUIRE_TRY_STATUS(parse_json(text, name, limits, tree.get()));
  if (!tree->is_object()) return bad_input(fmt::format("{} must hold a JSON object, {}", name, found(*tree)));
  return JsonDocument(std::move(tree), std::string(name));
}

Result<JsonDocument> JsonDocument::read(const std::string& path, const JsonLimits& limits) {
  QUIRE_TRY(text, read_text_file(path, limits.bytes));
  return parse(text, path.substr(path.find_last_of('/') + 1), limits);
}

}  // namespace quire::checkpoint
