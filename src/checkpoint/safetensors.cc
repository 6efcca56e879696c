#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/json.h"
#include "checkpoint/printable.h"

namespace quire::checkpoint {
namespace {

using nlohmann::json;

struct TypeLine {
  std::string_view name;
  std::int64_t bytes;
  std::optional<WeightFormat> format;
};
constexpr std::array kTypes{
    TypeLine{"F32", 4, WeightFormat::f32},   TypeLine{"F16", 2, WeightFormat::f16},
    TypeLine{"BF16", 2, WeightFormat::bf16}, TypeLine{"F8_E4M3", 1, WeightFormat::fp8_e4m3},
    TypeLine{"F8_E5M2", 1, std::nullopt},    TypeLine{"F8_E8M0", 1, std::nullopt},
    TypeLine{"F64", 8, std::nullopt},        TypeLine{"BOOL", 1, std::nullopt},
    TypeLine{"U8", 1, std::nullopt},         TypeLine{"I8", 1, std::nullopt},
    TypeLine{"U16", 2, std::nullopt},        TypeLine{"I16", 2, std::nullopt},
    TypeLine{"U32", 4, std::nullopt},        TypeLine{"I32", 4, std::nullopt},
    TypeLine{"U64", 8, std::nullopt},        TypeLine{"I64", 8, std::nullopt},
};

const TypeLine* find_type(std::string_view name) {
  const auto* line =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeLine& t) { return t.name == name; });
  return line == kTypes.end() ? nullptr : line;
}

constexpr JsonLimits kHeaderLimits{.bytes = kMaxSafetensorsHeader, .depth = 4, .nodes = 10 * kMaxTensors};

// A list of whole numbers >= 0, or nothing.
std::optional<std::vector<std::int64_t>> sizes(const json& value, std::size_t most) {
  if (!value.is_array() || value.size() > most) return std::nullopt;
  std::vector<std::int64_t> out;
  for (const json& entry : value) {
    if (!entry.is_number_unsigned() || entry.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      return std::nullopt;
    }
    out.push_back(entry.get<std::int64_t>());
  }
  return out;
}

// One entry of the header; `data` is the bytes behind it. `begin` receives where the tensor starts.
Result<TensorInfo> read_entry(const std::string& key, const json& entry, std::span<const std::byte> data,
                              std::int64_t& begin) {
  const auto refuse = [&](std::string_view what) {
    return bad_input(fmt::format("tensor \"{}\": {}", printable(key), what));
  };
  if (!is_plain_name(key, kMaxTensorName))
    return refuse("its name is empty, too long or holds control characters");
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    return refuse("its entry must have exactly dtype, shape and data_offsets");
  }
  const json& type_name = entry["dtype"];
  if (!type_name.is_string()) return refuse("dtype is not a string");
  const TypeLine* type = find_type(type_name.get_ref<const std::string&>());
  if (type == nullptr) {
    return refuse(fmt::format("unknown dtype \"{}\"", printable(type_name.get_ref<const std::string&>())));
  }
  auto shape = sizes(entry["shape"], kMaxRank);
  if (!shape) return refuse(fmt::format("shape must be a list of at most {} sizes", kMaxRank));
  const auto span = sizes(entry["data_offsets"], 2);
  if (!span || span->size() != 2 || (*span)[0] > (*span)[1])
    return refuse("data_offsets must be [begin, end]");
  if ((*span)[1] > static_cast<std::int64_t>(data.size())) {
    return refuse(
        fmt::format("its data ends at byte {}, but only {} bytes follow the header: the file is cut short",
                    (*span)[1], data.size()));
  }
  std::int64_t bytes = type->bytes;
  for (const std::int64_t size : *shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return refuse("its size overflows");
  }
  begin = (*span)[0];
  if (bytes != (*span)[1] - begin) {
    return refuse(fmt::format("its shape and dtype need {} bytes, but data_offsets span {}", bytes,
                              (*span)[1] - begin));
  }
  return TensorInfo{key,  std::string(type->name), type->format, *std::move(shape), data.data() + begin,
                    bytes};
}

Status check_metadata(const json& metadata) {
  const bool strings =
      metadata.is_object() &&
      std::all_of(metadata.begin(), metadata.end(), [](const json& value) { return value.is_string(); });
  if (!strings) return bad_input("__metadata__ must map strings to strings");
  return {};
}

// Tensors sorted by place must follow one another from 0 to the end.
Status check_coverage(const std::vector<TensorInfo>& tensors, std::span<const std::byte> data) {
  const std::byte* expected = data.data();
  for (const TensorInfo& tensor : tensors) {
    if (tensor.data != expected) {
      return bad_input(fmt::format("tensor \"{}\" starts at byte {} where {} was expected: {}",
                                   printable(tensor.name), tensor.data - data.data(), expected - data.data(),
                                   tensor.data < expected ? "tensors overlap" : "bytes without a tensor"));
    }
    expected += tensor.bytes;
  }
  const std::int64_t rest = data.data() + data.size() - expected;
  if (rest != 0) return bad_input(fmt::format("{} bytes after the last tensor belong to none", rest));
  return {};
}

Result<std::vector<TensorInfo>> parse(std::span<const std::byte> file) {
  if (file.size() < 8)
    return bad_input(fmt::format("{} bytes are too few for a safetensors file", file.size()));
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxSafetensorsHeader) {
    return bad_input(fmt::format("the header's length {} is over the limit of {}: not a safetensors file",
                                 length, kMaxSafetensorsHeader));
  }
  if (length > file.size() - 8) {
    return bad_input(
        fmt::format("the header's length {} runs past the end of the file ({} bytes)", length, file.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (!text.starts_with('{')) return bad_input("the header does not start with '{'");
  json header;
  QUIRE_TRY_STATUS(parse_json(text, "header", kHeaderLimits, &header));
  if (header.size() > kMaxTensors) return bad_input(fmt::format("more than {} tensors", kMaxTensors));

  const std::span<const std::byte> data = file.subspan(8 + length);
  std::vector<TensorInfo> tensors;
  for (const auto& [key, entry] : header.get_ref<const json::object_t&>()) {
    if (key == "__metadata__") {
      QUIRE_TRY_STATUS(check_metadata(entry));
      continue;
    }
    std::int64_t begin = 0;
    QUIRE_TRY(tensor, read_entry(key, entry, data, begin));
    tensors.push_back(std::move(tensor));
  }
  // Empty tensors first where several start at one place.
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.data != b.data ? a.data < b.data : a.bytes < b.bytes;
  });
  QUIRE_TRY_STATUS(check_coverage(tensors, data));
  return tensors;
}

}  // namespace

Result<std::vector<TensorInfo>> parse_safetensors(std::span<const std::byte> file, std::string_view name) {
  auto tensors = parse(file);
  if (!tensors.ok()) return bad_input(fmt::format("{}: {}", printable(name), tensors.error().message));
  return tensors;
}

}  // namespace quire::checkpoint
