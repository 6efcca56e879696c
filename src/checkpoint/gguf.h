// The GGUF reader, versions 2 and 3, little-endian. Every count, length, offset and product is checked
// against the bytes that are there before it is used; memory taken is bounded by the file's own size.
//
// Metadata stays in the mapped file: strings and string arrays are views, numbers are read on demand.
// Keys are unique. Any thread may read.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/tensor_info.h"

namespace quire::checkpoint {

enum class GgufType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};
std::string_view to_string(GgufType type);

// A value where it lies in the file. For arrays `element` and `count` are set; data is the first element.
struct GgufValue {
  GgufType type = GgufType::u8;
  GgufType element = GgufType::u8;
  std::uint64_t count = 1;
  std::span<const std::byte> data;
};

class GgufFile {
 public:
  // Parses a whole file in memory, which must outlive the result. `name` is what messages call it.
  static Result<GgufFile> parse(std::span<const std::byte> file, std::string_view name);

  std::uint32_t version() const { return version_; }
  std::uint64_t alignment() const { return alignment_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }

  bool has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }
  // A present key of another type, or a value outside [low, high], is an error; so is an absent key, but
  // for the _or forms. Integers of any width are taken; a one-value array counts as a number only in
  // integers() and numbers().
  Result<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> integer_or(std::string_view key, std::int64_t fallback, std::int64_t low,
                                  std::int64_t high) const;
  Result<double> number(std::string_view key, double low, double high) const;
  Result<double> number_or(std::string_view key, double fallback, double low, double high) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string_view> string(std::string_view key) const;
  Result<std::string_view> string_or(std::string_view key, std::string_view fallback) const;
  // Arrays; a single number counts as a list of one. Views point into the file.
  Result<std::vector<std::string_view>> strings(std::string_view key) const;
  Result<std::vector<std::int64_t>> integers(std::string_view key) const;  // booleans too, as 0 and 1
  Result<std::vector<double>> numbers(std::string_view key) const;

 private:
  friend class GgufParser;

  Result<const GgufValue*> find(std::string_view key) const;
  Error wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  std::string name_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = 32;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace quire::checkpoint
