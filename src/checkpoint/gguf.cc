#include "checkpoint/gguf.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "checkpoint/printable.h"

namespace quire::checkpoint {
namespace {

template <class T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

bool is_integer(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::u16:
    case GgufType::i16:
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::u64:
    case GgufType::i64:
      return true;
    default:
      return false;
  }
}

// The value of an integer or boolean element; false when it is over int64.
bool load_integer(GgufType type, const std::byte* data, std::int64_t& out) {
  switch (type) {
    case GgufType::u8:
      out = load<std::uint8_t>(data);
      return true;
    case GgufType::boolean:
      out = load<std::uint8_t>(data) != 0;
      return true;
    case GgufType::i8:
      out = load<std::int8_t>(data);
      return true;
    case GgufType::u16:
      out = load<std::uint16_t>(data);
      return true;
    case GgufType::i16:
      out = load<std::int16_t>(data);
      return true;
    case GgufType::u32:
      out = load<std::uint32_t>(data);
      return true;
    case GgufType::i32:
      out = load<std::int32_t>(data);
      return true;
    case GgufType::i64:
      out = load<std::int64_t>(data);
      return true;
    case GgufType::u64: {
      const auto value = load<std::uint64_t>(data);
      out = static_cast<std::int64_t>(value);
      return value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    }
    default:
      return false;
  }
}

bool load_number(GgufType type, const std::byte* data, double& out) {
  if (type == GgufType::f32) {
    out = load<float>(data);
    return true;
  }
  if (type == GgufType::f64) {
    out = load<double>(data);
    return true;
  }
  std::int64_t whole = 0;
  if (!is_integer(type) || !load_integer(type, data, whole)) return false;
  out = static_cast<double>(whole);
  return true;
}

std::size_t step_of(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    default:
      return 0;
  }
}

std::string describe(const GgufValue& value) {
  if (value.type != GgufType::array) return std::string(to_string(value.type));
  return fmt::format("an array of {} x {}", value.count, to_string(value.element));
}

}  // namespace

std::string_view to_string(GgufType type) {
  switch (type) {
    case GgufType::u8:
      return "u8";
    case GgufType::i8:
      return "i8";
    case GgufType::u16:
      return "u16";
    case GgufType::i16:
      return "i16";
    case GgufType::u32:
      return "u32";
    case GgufType::i32:
      return "i32";
    case GgufType::f32:
      return "f32";
    case GgufType::boolean:
      return "bool";
    case GgufType::string:
      return "string";
    case GgufType::array:
      return "array";
    case GgufType::u64:
      return "u64";
    case GgufType::i64:
      return "i64";
    case GgufType::f64:
      return "f64";
  }
  return "unknown";
}

Result<const GgufValue*> GgufFile::find(std::string_view key) const {
  const auto place = metadata_.find(key);
  if (place == metadata_.end()) {
    return bad_input(fmt::format("{}: the metadata key {} is missing", name_, printable(key)));
  }
  return &place->second;
}

Error GgufFile::wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  return bad_input(
      fmt::format("{}: {} must be {}, found {}", name_, printable(key), wanted, describe(value)));
}

Result<std::int64_t> GgufFile::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  QUIRE_TRY(value, find(key));
  if (!is_integer(value->type)) return wrong_type(key, *value, "an integer");
  std::int64_t number = 0;
  const bool fits = load_integer(value->type, value->data.data(), number);
  if (!fits || number < low || number > high) {
    return bad_input(fmt::format("{}: {} is {}, but must be from {} to {}", name_, printable(key),
                                 fits ? fmt::format("{}", number) : "over 2^63", low, high));
  }
  return number;
}

Result<std::int64_t> GgufFile::integer_or(std::string_view key, std::int64_t fallback, std::int64_t low,
                                          std::int64_t high) const {
  if (!has(key)) return fallback;
  return integer(key, low, high);
}

Result<double> GgufFile::number(std::string_view key, double low, double high) const {
  QUIRE_TRY(value, find(key));
  double number = 0;
  if (!load_number(value->type, value->data.data(), number)) return wrong_type(key, *value, "a number");
  if (!(number >= low && number <= high)) {
    return bad_input(
        fmt::format("{}: {} is {}, but must be from {} to {}", name_, printable(key), number, low, high));
  }
  return number;
}

Result<double> GgufFile::number_or(std::string_view key, double fallback, double low, double high) const {
  if (!has(key)) return fallback;
  return number(key, low, high);
}

Result<bool> GgufFile::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  QUIRE_TRY(value, find(key));
  if (value->type != GgufType::boolean) return wrong_type(key, *value, "a bool");
  return value->data[0] != std::byte{0};
}

Result<std::string_view> GgufFile::string(std::string_view key) const {
  QUIRE_TRY(value, find(key));
  if (value->type != GgufType::string) return wrong_type(key, *value, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->data.data()), value->data.size());
}

Result<std::string_view> GgufFile::string_or(std::string_view key, std::string_view fallback) const {
  if (!has(key)) return fallback;
  return string(key);
}

Result<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  QUIRE_TRY(value, find(key));
  if (value->type != GgufType::array || value->element != GgufType::string) {
    return wrong_type(key, *value, "an array of strings");
  }
  std::vector<std::string_view> out;
  out.reserve(value->count);
  // The parser has walked these bytes: every length fits.
  const std::byte* place = value->data.data();
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto length = load<std::uint64_t>(place);
    out.emplace_back(reinterpret_cast<const char*>(place) + 8, length);
    place += 8 + length;
  }
  return out;
}

Result<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  QUIRE_TRY(value, find(key));
  const GgufType type = value->type == GgufType::array ? value->element : value->type;
  if (!is_integer(type) && type != GgufType::boolean) return wrong_type(key, *value, "an array of integers");
  std::vector<std::int64_t> out(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    if (!load_integer(type, value->data.data() + i * step_of(type), out[i])) {
      return bad_input(fmt::format("{}: {}[{}] is over 2^63", name_, printable(key), i));
    }
  }
  return out;
}

Result<std::vector<double>> GgufFile::numbers(std::string_view key) const {
  QUIRE_TRY(value, find(key));
  const GgufType type = value->type == GgufType::array ? value->element : value->type;
  std::vector<double> out(step_of(type) == 0 ? 0 : value->count);
  if (step_of(type) == 0) return wrong_type(key, *value, "an array of numbers");
  for (std::uint64_t i = 0; i < value->count; ++i) {
    if (!load_number(type, value->data.data() + i * step_of(type), out[i])) {
      return wrong_type(key, *value, "an array of numbers");
    }
  }
  return out;
}

}  // namespace quire::checkpoint
