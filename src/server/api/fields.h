// Fields: what a request may hold, said once. A request type walks its fields past a visitor: FieldReader
// takes them from a body and refuses what is wrong with the field's name; FieldSchema writes them down as
// JSON schema for /openapi.json. So the document cannot drift from what is accepted.
//
// null is the same as absent. Fields that no one visits are ignored, as OpenAI does.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/json.h"

namespace quire::server::api {

struct Field {
  const char* name;
  const char* what;  // for the document
  bool required = false;
};

class Fields;

// Takes a value that is not null. `path` names it in errors.
using ReadValue = std::function<Problem(const Json& value, const std::string& path)>;

// Refuses what is no object, or no array; `wanted` says of what.
Problem want_object(const Json& value, const std::string& path, std::string_view wanted = "an object");
Problem want_array(const Json& value, const std::string& path, std::string_view wanted = "an array");
// Keeps an object as it stands.
ReadValue keep_object(Json* target);
// Token ids of an array: integers from 0.
Problem read_token_ids(const Json& list, const std::string& path, std::vector<std::int32_t>* ids);

class Fields {
 public:
  virtual ~Fields() = default;
  virtual void boolean(Field field, std::optional<bool>* target) = 0;
  virtual void integer(Field field, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t>* target) = 0;
  virtual void number(Field field, double low, double high, std::optional<double>* target) = 0;
  virtual void text(Field field, std::size_t bytes_max, std::optional<std::string>* target) = 0;
  virtual void choice(Field field, std::vector<std::string_view> legal,
                      std::optional<std::string>* target) = 0;
  // An object whose own fields `visit` walks.
  virtual void object(Field field, const std::function<void(Fields&)>& visit) = 0;
  // Of any shape: `schema` is its JSON schema as text.
  virtual void value(Field field, const char* schema, const ReadValue& read) = 0;
  // A field that is not here: only the values that change nothing (JSON texts) are taken. `instead` is the
  // nearest legal change.
  virtual void missing(Field field, std::initializer_list<const char*> neutral, const char* instead) = 0;

  // A field that is checked and has no effect here: a text for the caller's own books.
  void noted(Field field);
};

class FieldReader final : public Fields {
 public:
  // `object` outlives the reader. `path`: of the object itself, empty for the body.
  explicit FieldReader(const Json& object, std::string path = "");
  void boolean(Field field, std::optional<bool>* target) override;
  void integer(Field field, std::int64_t low, std::int64_t high,
               std::optional<std::int64_t>* target) override;
  void number(Field field, double low, double high, std::optional<double>* target) override;
  void text(Field field, std::size_t bytes_max, std::optional<std::string>* target) override;
  void choice(Field field, std::vector<std::string_view> legal, std::optional<std::string>* target) override;
  void object(Field field, const std::function<void(Fields&)>& visit) override;
  void value(Field field, const char* schema, const ReadValue& read) override;
  void missing(Field field, std::initializer_list<const char*> neutral, const char* instead) override;

  // The first that was wrong; what comes after it is not read.
  const Problem& problem() const { return problem_; }

 private:
  const Json* find(const Field& field);
  std::string path_of(const char* name) const;
  void wrong_type(const Field& field, std::string_view expected, const Json& value);

  const Json& object_;
  std::string path_;
  Problem problem_;
};

class FieldSchema final : public Fields {
 public:
  void boolean(Field field, std::optional<bool>* target) override;
  void integer(Field field, std::int64_t low, std::int64_t high,
               std::optional<std::int64_t>* target) override;
  void number(Field field, double low, double high, std::optional<double>* target) override;
  void text(Field field, std::size_t bytes_max, std::optional<std::string>* target) override;
  void choice(Field field, std::vector<std::string_view> legal, std::optional<std::string>* target) override;
  void object(Field field, const std::function<void(Fields&)>& visit) override;
  void value(Field field, const char* schema, const ReadValue& read) override;
  void missing(Field field, std::initializer_list<const char*> neutral, const char* instead) override;

  // {"type":"object","properties":{...},"required":[...]}, as JSON text
  std::string schema() const;

 private:
  struct Property {
    std::string name;
    std::string schema;
    bool required;
  };
  void add(const Field& field, Json schema);
  std::vector<Property> properties_;
};

// The two walks over a request type that has a visit(Fields&, Request&).
template <class Request>
Problem read_fields(const Json& object, Request* request) {
  FieldReader reader(object);
  visit(reader, *request);
  return reader.problem();
}
template <class Request>
std::string schema_of() {
  Request request;
  FieldSchema schema;
  visit(schema, request);
  return schema.schema();
}

}  // namespace quire::server::api
