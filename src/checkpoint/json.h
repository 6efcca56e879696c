// Bounded JSON for untrusted files. parse_json refuses what a parser could choke on before any tree of it
// exists: text over `bytes`, nesting over `depth`, more than `nodes` values, a key twice in one object,
// broken UTF-8. Nothing here recurses over the nesting of the input.
//
// JsonView reads a parsed document with named, bounded accessors; every error says file, key and value.
// A view borrows from its document. Any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::checkpoint {

struct JsonLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t depth = 64;
  std::size_t nodes = std::size_t{1} << 20;
};

// Parses `text` into *out; `name` is what messages call it ("config.json"). On an error *out is null.
Status parse_json(std::string_view text, std::string_view name, const JsonLimits& limits,
                  nlohmann::json* out);

// An object of a document. Keys that hold null count as absent, as published configs use them.
class JsonView {
 public:
  JsonView(const nlohmann::json* node, std::string where) : node_(node), where_(std::move(where)) {}

  const std::string& where() const { return where_; }  // "config.json" or "config.json: rope_scaling"
  bool has(std::string_view key) const;
  bool is_null(std::string_view key) const;  // present, with the value null
  bool is_object(std::string_view key) const;
  bool is_string(std::string_view key) const;
  bool is_array(std::string_view key) const;
  std::vector<std::string> keys() const;

  // A present key of another type, or a value outside [low, high], is an error; so is an absent key, but
  // for the _or forms. integer also takes 4.0.
  Result<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> integer_or(std::string_view key, std::int64_t fallback, std::int64_t low,
                                  std::int64_t high) const;
  Result<double> number(std::string_view key, double low, double high) const;
  Result<double> number_or(std::string_view key, double fallback, double low, double high) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> string(std::string_view key) const;
  Result<std::string> string_or(std::string_view key, std::string_view fallback) const;
  Result<JsonView> object(std::string_view key) const;
  // Lists of at most `most` entries. integers also takes a single number as a list of one.
  Result<std::vector<std::string>> strings(std::string_view key, std::size_t most) const;
  Result<std::vector<std::int64_t>> integers(std::string_view key, std::size_t most) const;
  Result<std::vector<JsonView>> objects(std::string_view key, std::size_t most) const;

  const nlohmann::json& raw() const { return *node_; }

 private:
  const nlohmann::json* find(std::string_view key) const;

  const nlohmann::json* node_;
  std::string where_;
};

// A parsed file whose root is an object. Move only; views point into it.
class JsonDocument {
 public:
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();
  JsonView root() const { return JsonView(tree_.get(), name_); }

  static Result<JsonDocument> parse(std::string_view text, std::string_view name,
                                    const JsonLimits& limits = {});
  // `name` of the messages is the file's last path component.
  static Result<JsonDocument> read(const std::string& path, const JsonLimits& limits = {});

 private:
  JsonDocument(std::unique_ptr<nlohmann::json> tree, std::string name);

  std::unique_ptr<nlohmann::json> tree_;
  std::string name_;
};

}  // namespace quire::checkpoint
