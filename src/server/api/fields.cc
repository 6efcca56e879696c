#include "server/api/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/limits.h"

namespace quire::server::api {

namespace {

// 3.0 is an integer to JSON schema and to the clients that write it so.
bool is_whole(const Json& value) {
  return value.is_number_integer() ||
         (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
}

// A whole number; nothing beyond 64 bits, or where a double no longer tells neighbours apart.
std::optional<std::int64_t> integer_of(const Json& value) {
  constexpr double kExact = 9e15;
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    return std::abs(number) <= kExact ? std::optional(static_cast<std::int64_t>(number)) : std::nullopt;
  }
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<std::int64_t>();
}

}  // namespace

Problem want_object(const Json& value, const std::string& path, std::string_view wanted) {
  if (value.is_object()) return {};
  return invalid_type(path, fmt::format("'{}' is {}: give {}", path, type_name(value), wanted));
}

Problem want_array(const Json& value, const std::string& path, std::string_view wanted) {
  if (value.is_array()) return {};
  return invalid_type(path, fmt::format("'{}' is {}: give {}", path, type_name(value), wanted));
}

ReadValue keep_object(Json* target) {
  return [target](const Json& value, const std::string& path) -> Problem {
    if (Problem problem = want_object(value, path)) return problem;
    *target = value;
    return {};
  };
}

Problem read_token_ids(const Json& list, const std::string& path, std::vector<std::int32_t>* ids) {
  ids->reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    const bool fine = id.is_number_integer() &&
                      (!id.is_number_unsigned() || id.get<std::uint64_t>() <= kTokenIdMax) &&
                      id.get<std::int64_t>() >= 0;
    const std::string place = fine ? "" : fmt::format("{}[{}]", path, i);
    if (!id.is_number_integer())
      return invalid_type(place, fmt::format("'{}' is {}: give a token id", place, type_name(id)));
    if (!fine) return invalid_value(place, fmt::format("'{}' is {}: not a token id", place, shown(id)));
    ids->push_back(id.get<std::int32_t>());
  }
  return {};
}

void Fields::noted(Field field) {
  constexpr std::size_t kNoteBytesMax = 4096;
  std::optional<std::string> ignored;
  text(field, kNoteBytesMax, &ignored);
}

FieldReader::FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

std::string FieldReader::path_of(const char* name) const {
  return path_.empty() ? std::string(name) : path_ + "." + name;
}

const Json* FieldReader::find(const Field& field) {
  if (problem_) return nullptr;
  const auto found = object_.find(field.name);
  if (found != object_.end() && !found->is_null()) return &*found;
  if (field.required) problem_ = missing_field(path_of(field.name), field.what);
  return nullptr;
}

void FieldReader::wrong_type(const Field& field, std::string_view expected, const Json& value) {
  const std::string path = path_of(field.name);
  problem_ = invalid_type(path, fmt::format("'{}' is {}: give {}", path, type_name(value), expected));
}

void FieldReader::boolean(Field field, std::optional<bool>* target) {
  const Json* value = find(field);
  if (value == nullptr) return;
  if (!value->is_boolean()) return wrong_type(field, "true or false", *value);
  *target = value->get<bool>();
}

void FieldReader::integer(Field field, std::int64_t low, std::int64_t high,
                          std::optional<std::int64_t>* target) {
  const Json* value = find(field);
  if (value == nullptr) return;
  if (!is_whole(*value)) return wrong_type(field, "an integer", *value);
  const std::optional<std::int64_t> number = integer_of(*value);
  if (!number || *number < low || *number > high) {
    const std::string path = path_of(field.name);
    problem_ = invalid_value(
        path, fmt::format("'{}' is {}: give an integer from {} to {}", path, shown(*value), low, high));
    return;
  }
  *target = *number;
}

void FieldReader::number(Field field, double low, double high, std::optional<double>* target) {
  const Json* value = find(field);
  if (value == nullptr) return;
  if (!value->is_number()) return wrong_type(field, "a number", *value);
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    const std::string path = path_of(field.name);
    problem_ = invalid_value(
        path, fmt::format("'{}' is {}: give a number from {} to {}", path, shown(*value), low, high));
    return;
  }
  *target = number;
}

void FieldReader::text(Field field, std::size_t bytes_max, std::optional<std::string>* target) {
  const Json* value = find(field);
  if (value == nullptr) return;
  if (!value->is_string()) return wrong_type(field, "a string", *value);
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > bytes_max) {
    const std::string path = path_of(field.name);
    problem_ =
        invalid_value(path, fmt::format("'{}' has {} bytes: give at most {}", path, text.size(), bytes_max));
    return;
  }
  *target = text;
}

void FieldReader::choice(Field field, std::vector<std::string_view> legal,
                         std::optional<std::string>* target) {
  const Json* value = find(field);
  if (value == nullptr) return;
  if (!value->is_string()) return wrong_type(field, "a string", *value);
  const auto& text = value->get_ref<const std::string&>();
  if (std::find(legal.begin(), legal.end(), text) == legal.end()) {
    const std::string path = path_of(field.name);
    problem_ = invalid_value(
        path, fmt::format("'{}' is {}: give one of {}", path, shown(*value), comma_list(legal)));
    return;
  }
  *target = text;
}

void FieldReader::object(Field field, const std::function<void(Fields&)>& visit) {
  const Json* value = find(field);
  if (value == nullptr) return;
  const std::string path = path_of(field.name);
  problem_ = want_object(*value, path);
  if (problem_) return;
  FieldReader inner(*value, path);
  visit(inner);
  problem_ = inner.problem();
}

void FieldReader::value(Field field, const char* /*schema*/, const ReadValue& read) {
  const Json* value = find(field);
  if (value != nullptr) problem_ = read(*value, path_of(field.name));
}

void FieldReader::missing(Field field, std::initializer_list<const char*> neutral, const char* instead) {
  const Json* value = find(field);
  if (value == nullptr) return;
  const bool fine = std::any_of(neutral.begin(), neutral.end(),
                                [&](const char* text) { return Json::parse(text) == *value; });
  if (fine) return;
  const std::string path = path_of(field.name);
  problem_ = unsupported(path, fmt::format("'{}' is {}: not taken here; {}", path, shown(*value), instead));
}

void FieldSchema::add(const Field& field, Json schema) {
  if (!field.required) {
    const bool typed = schema.contains("type") && schema["type"].is_string();
    if (typed && schema["type"] != "null") schema["type"] = Json::array({schema["type"], "null"});
    if (schema.contains("enum")) {
      schema["enum"].push_back(nullptr);
    } else if (typed) {
      // said by the type
    } else if (schema.contains("anyOf")) {
      schema["anyOf"].push_back({{"type", "null"}});
    } else {
      schema = Json{{"anyOf", Json::array({std::move(schema), Json{{"type", "null"}}})}};
    }
  }
  schema["description"] = field.what;
  properties_.push_back({field.name, json_text(schema), field.required});
}

void FieldSchema::boolean(Field field, std::optional<bool>*) { add(field, {{"type", "boolean"}}); }

void FieldSchema::integer(Field field, std::int64_t low, std::int64_t high, std::optional<std::int64_t>*) {
  add(field, {{"type", "integer"}, {"minimum", low}, {"maximum", high}});
}

void FieldSchema::number(Field field, double low, double high, std::optional<double>*) {
  add(field, {{"type", "number"}, {"minimum", low}, {"maximum", high}});
}

void FieldSchema::text(Field field, std::size_t bytes_max, std::optional<std::string>*) {
  add(field, {{"type", "string"}, {"maxLength", bytes_max}});
}

void FieldSchema::choice(Field field, std::vector<std::string_view> legal, std::optional<std::string>*) {
  add(field, {{"type", "string"}, {"enum", legal}});
}

void FieldSchema::object(Field field, const std::function<void(Fields&)>& visit) {
  FieldSchema inner;
  visit(inner);
  add(field, Json::parse(inner.schema()));
}

void FieldSchema::value(Field field, const char* schema, const ReadValue&) {
  add(field, Json::parse(schema));
}

void FieldSchema::missing(Field field, std::initializer_list<const char*> neutral, const char*) {
  if (neutral.size() == 0) return add(field, {{"type", "null"}});
  Json values = Json::array();
  for (const char* text : neutral) values.push_back(Json::parse(text));
  add(field, {{"enum", std::move(values)}});
}

std::string FieldSchema::schema() const {
  Json properties = Json::object();
  Json required = Json::array();
  for (const Property& property : properties_) {
    properties[property.name] = Json::parse(property.schema);
    if (property.required) required.push_back(property.name);
  }
  Json schema{{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  return json_text(schema);
}

}  // namespace quire::server::api
