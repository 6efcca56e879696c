// The part of the GGUF reader that walks untrusted bytes. Nothing here recurses, and every length is
// compared with what is left before it is added to anything.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "checkpoint/gguf.h"
#include "checkpoint/printable.h"

namespace quire::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the readers load little-endian values as they are");

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kMaxKeys = 65536;
constexpr std::size_t kMaxKeyLength = 65535;  // the format's own limit
constexpr std::uint32_t kMaxDims = 4;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 20;
constexpr std::uint64_t kDefaultAlignment = 32;

// ggml's type numbers. Types without a WeightFormat are measured, so that a file that has one can be
// opened and the tensor named.
struct TypeLine {
  std::uint32_t number;
  std::string_view name;
  std::int64_t block_elements;
  std::int64_t block_bytes;
  std::optional<WeightFormat> format;
};
constexpr std::array kTypes{
    TypeLine{0, "F32", 1, 4, WeightFormat::f32},
    TypeLine{1, "F16", 1, 2, WeightFormat::f16},
    TypeLine{2, "Q4_0", 32, 18, WeightFormat::q4_0},
    TypeLine{3, "Q4_1", 32, 20, WeightFormat::q4_1},
    TypeLine{6, "Q5_0", 32, 22, WeightFormat::q5_0},
    TypeLine{7, "Q5_1", 32, 24, WeightFormat::q5_1},
    TypeLine{8, "Q8_0", 32, 34, WeightFormat::q8_0},
    TypeLine{10, "Q2_K", 256, 84, WeightFormat::q2_k},
    TypeLine{11, "Q3_K", 256, 110, WeightFormat::q3_k},
    TypeLine{12, "Q4_K", 256, 144, WeightFormat::q4_k},
    TypeLine{13, "Q5_K", 256, 176, WeightFormat::q5_k},
    TypeLine{14, "Q6_K", 256, 210, WeightFormat::q6_k},
    TypeLine{16, "IQ2_XXS", 256, 66, std::nullopt},
    TypeLine{17, "IQ2_XS", 256, 74, std::nullopt},
    TypeLine{18, "IQ3_XXS", 256, 98, std::nullopt},
    TypeLine{19, "IQ1_S", 256, 50, std::nullopt},
    TypeLine{20, "IQ4_NL", 32, 18, WeightFormat::iq4_nl},
    TypeLine{21, "IQ3_S", 256, 110, std::nullopt},
    TypeLine{22, "IQ2_S", 256, 82, std::nullopt},
    TypeLine{23, "IQ4_XS", 256, 136, WeightFormat::iq4_xs},
    TypeLine{24, "I8", 1, 1, std::nullopt},
    TypeLine{25, "I16", 1, 2, std::nullopt},
    TypeLine{26, "I32", 1, 4, std::nullopt},
    TypeLine{27, "I64", 1, 8, std::nullopt},
    TypeLine{28, "F64", 1, 8, std::nullopt},
    TypeLine{29, "IQ1_M", 256, 56, std::nullopt},
    TypeLine{30, "BF16", 1, 2, WeightFormat::bf16},
    TypeLine{34, "TQ1_0", 256, 54, std::nullopt},
    TypeLine{35, "TQ2_0", 256, 66, std::nullopt},
    TypeLine{39, "MXFP4", 32, 17, WeightFormat::mxfp4},
};

// Bytes of one metadata element; 0 for strings and arrays, nothing for numbers that are no type.
std::optional<std::uint64_t> element_bytes(std::uint32_t type) {
  constexpr std::array<std::uint8_t, 13> kBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  if (type >= kBytes.size()) return std::nullopt;
  return kBytes[type];
}

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> file, GgufFile& out) : file_(file), out_(out) {}

  Status parse() {
    QUIRE_TRY_STATUS(header());
    for (std::uint64_t i = 0; i < keys_; ++i) QUIRE_TRY_STATUS(key_value(i));
    QUIRE_TRY_STATUS(alignment());
    out_.tensors_.reserve(tensors_);
    for (std::uint64_t i = 0; i < tensors_; ++i) QUIRE_TRY_STATUS(tensor(i));
    return place_tensors();
  }

 private:
  std::uint64_t left() const { return file_.size() - at_; }

  Error cut_short(std::string_view what) const {
    return bad_input(fmt::format("the file ends inside {} (at byte {} of {})", what, at_, file_.size()));
  }

  template <class T>
  Status read(T& value, std::string_view what) {
    if (left() < sizeof(T)) return cut_short(what);
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return {};
  }

  Status read_string(std::string_view& text, std::string_view what) {
    std::uint64_t length = 0;
    QUIRE_TRY_STATUS(read(length, what));
    if (length > left()) return cut_short(what);
    text = {reinterpret_cast<const char*>(file_.data()) + at_, length};
    at_ += length;
    return {};
  }

  Status header() {
    std::uint32_t magic = 0;
    QUIRE_TRY_STATUS(read(magic, "its first bytes"));
    if (magic != kMagic) return bad_input("the file does not start with \"GGUF\"");
    QUIRE_TRY_STATUS(read(out_.version_, "the version"));
    if (out_.version_ != 2 && out_.version_ != 3) {
      const bool swapped = out_.version_ != 0 && (out_.version_ & 0xffff) == 0;
      return bad_input(swapped
                           ? "big-endian GGUF files are not read: use a little-endian one"
                           : fmt::format("GGUF version {} is not read: versions 2 and 3 are", out_.version_));
    }
    QUIRE_TRY_STATUS(read(tensors_, "the tensor count"));
    QUIRE_TRY_STATUS(read(keys_, "the key count"));
    // Shortest key: length, one byte, type, one byte. Shortest tensor: length, one byte, rank, type, offset.
    if (keys_ > kMaxKeys || keys_ > left() / 14) {
      return bad_input(
          fmt::format("{} metadata keys are over the limit of {} or of the file's size", keys_, kMaxKeys));
    }
    if (tensors_ > kMaxTensors || tensors_ > left() / 25) {
      return bad_input(
          fmt::format("{} tensors are over the limit of {} or of the file's size", tensors_, kMaxTensors));
    }
    return {};
  }

  Status key_value(std::uint64_t index) {
    std::string_view key;
    QUIRE_TRY_STATUS(read_string(key, fmt::format("metadata key {}", index)));
    if (!is_plain_name(key, kMaxKeyLength)) {
      return bad_input(fmt::format("metadata key {} (\"{}\") is empty, too long or not plain text", index,
                                   printable(key)));
    }
    GgufValue value;
    QUIRE_TRY_STATUS(read_value(value, printable(key)));
    if (!out_.metadata_.emplace(std::string(key), value).second) {
      return bad_input(fmt::format("the metadata key {} stands twice", printable(key)));
    }
    return {};
  }

  Status read_value(GgufValue& value, const std::string& key) {
    std::uint32_t type = 0;
    QUIRE_TRY_STATUS(read(type, key));
    const auto bytes = element_bytes(type);
    if (!bytes) return bad_input(fmt::format("{} has the unknown type {}", key, type));
    value.type = static_cast<GgufType>(type);
    if (value.type == GgufType::array) return read_array(value, key);
    if (value.type == GgufType::string) {
      std::string_view text;
      QUIRE_TRY_STATUS(read_string(text, key));
      value.data = {reinterpret_cast<const std::byte*>(text.data()), text.size()};
      return {};
    }
    if (*bytes > left()) return cut_short(key);
    value.data = file_.subspan(at_, *bytes);
    at_ += *bytes;
    return {};
  }

  Status read_array(GgufValue& value, const std::string& key) {
    std::uint32_t element = 0;
    QUIRE_TRY_STATUS(read(element, key));
    QUIRE_TRY_STATUS(read(value.count, key));
    const auto bytes = element_bytes(element);
    if (!bytes) return bad_input(fmt::format("{} is an array of the unknown type {}", key, element));
    value.element = static_cast<GgufType>(element);
    if (value.element == GgufType::array)
      return bad_input(fmt::format("{} is an array of arrays: not read", key));
    const std::uint64_t smallest = *bytes == 0 ? 8 : *bytes;  // a string is at least its length
    if (value.count > left() / smallest) {
      return bad_input(
          fmt::format("{} says {} elements, more than the file has bytes for", key, value.count));
    }
    const std::uint64_t begin = at_;
    if (*bytes != 0) {
      at_ += value.count * *bytes;
    } else {
      std::string_view ignored;
      for (std::uint64_t i = 0; i < value.count; ++i) QUIRE_TRY_STATUS(read_string(ignored, key));
    }
    value.data = file_.subspan(begin, at_ - begin);
    return {};
  }

  Status alignment() {
    out_.alignment_ = kDefaultAlignment;
    if (!out_.has("general.alignment")) return {};
    QUIRE_TRY(value, out_.integer("general.alignment", 1, kMaxAlignment));
    if (!std::has_single_bit(static_cast<std::uint64_t>(value))) {
      return bad_input(fmt::format("general.alignment is {}, but must be a power of two", value));
    }
    out_.alignment_ = static_cast<std::uint64_t>(value);
    return {};
  }

  // The description of one tensor; its offset is kept until the data section's start is known.
  Status tensor(std::uint64_t index) {
    std::string_view name;
    QUIRE_TRY_STATUS(read_string(name, fmt::format("the name of tensor {}", index)));
    if (!is_plain_name(name, kMaxTensorName)) {
      return bad_input(fmt::format("the name of tensor {} (\"{}\") is empty, too long or not plain text",
                                   index, printable(name)));
    }
    TensorInfo info;
    info.name = std::string(name);
    std::uint32_t rank = 0;
    QUIRE_TRY_STATUS(read(rank, printable(name)));
    if (rank == 0 || rank > kMaxDims) {
      return bad_input(fmt::format("tensor {} has {} dimensions, but 1 to {} are allowed", printable(name),
                                   rank, kMaxDims));
    }
    info.shape.resize(rank);
    for (std::uint32_t i = 0; i < rank; ++i) {
      QUIRE_TRY_STATUS(read(info.shape[rank - 1 - i], printable(name)));  // the file has the innermost first
    }
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
    QUIRE_TRY_STATUS(read(type, printable(name)));
    QUIRE_TRY_STATUS(read(offset, printable(name)));
    QUIRE_TRY_STATUS(measure(info, type));
    if (offset % out_.alignment_ != 0) {
      return bad_input(fmt::format("tensor {} starts at {}, not a multiple of the alignment {}",
                                   printable(name), offset, out_.alignment_));
    }
    offsets_.push_back(offset);
    out_.tensors_.push_back(std::move(info));
    return {};
  }

  static Status measure(TensorInfo& info, std::uint32_t type) {
    const auto* line =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeLine& t) { return t.number == type; });
    if (line == kTypes.end()) {
      return bad_input(fmt::format("tensor {} has the unknown type {}", printable(info.name), type));
    }
    info.type = std::string(line->name);
    info.format = line->format;
    const std::int64_t inner = info.shape.back();
    const auto bad_size = [](std::int64_t size) { return size < 1; };
    if (std::any_of(info.shape.begin(), info.shape.end(), bad_size) || inner % line->block_elements != 0) {
      return bad_input(
          fmt::format("tensor {} has rows of {} elements: sizes must be at least 1, and rows of {} whole "
                      "blocks of {}",
                      printable(info.name), inner, line->name, line->block_elements));
    }
    std::int64_t bytes = inner / line->block_elements;
    bool overflow = __builtin_mul_overflow(bytes, line->block_bytes, &bytes);
    std::int64_t elements = inner;  // shapes whose element count overflows are refused as well
    for (std::size_t i = 0; i + 1 < info.shape.size(); ++i) {
      overflow |= __builtin_mul_overflow(bytes, info.shape[i], &bytes);
      overflow |= __builtin_mul_overflow(elements, info.shape[i], &elements);
    }
    if (overflow) return bad_input(fmt::format("the size of tensor {} overflows", printable(info.name)));
    info.bytes = bytes;
    return {};
  }

  Status place_tensors() {
    if (tensors_ == 0) return {};
    const std::uint64_t start = (at_ + out_.alignment_ - 1) / out_.alignment_ * out_.alignment_;
    if (start > file_.size()) return cut_short("the padding before the tensors");
    const std::span<const std::byte> data = file_.subspan(start);
    for (std::size_t i = 0; i < out_.tensors_.size(); ++i) {
      TensorInfo& info = out_.tensors_[i];
      if (offsets_[i] > data.size() || static_cast<std::uint64_t>(info.bytes) > data.size() - offsets_[i]) {
        return bad_input(
            fmt::format("tensor {} needs bytes {} + {} of the data section, which has {}: the file is cut "
                        "short",
                        printable(info.name), offsets_[i], info.bytes, data.size()));
      }
      info.data = data.data() + offsets_[i];
    }
    return check_overlaps();
  }

  Status check_overlaps() const {
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& info : out_.tensors_) order.push_back(&info);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->data < b->data; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data) {
        return bad_input(fmt::format("tensors {} and {} overlap", printable(order[i - 1]->name),
                                     printable(order[i]->name)));
      }
    }
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->name == order[i]->name) {
        return bad_input(fmt::format("the tensor {} stands twice", printable(order[i]->name)));
      }
    }
    return {};
  }

  std::span<const std::byte> file_;
  GgufFile& out_;
  std::uint64_t at_ = 0;
  std::uint64_t tensors_ = 0;
  std::uint64_t keys_ = 0;
  std::vector<std::uint64_t> offsets_;
};

Result<GgufFile> GgufFile::parse(std::span<const std::byte> file, std::string_view name) {
  GgufFile out;
  out.name_ = printable(name);
  const Status status = GgufParser(file, out).parse();
  if (!status.ok()) {
    // Accessors that the parser calls put the name in front themselves.
    const std::string& message = status.error().message;
    return bad_input(message.starts_with(out.name_ + ": ") ? message
                                                           : fmt::format("{}: {}", out.name_, message));
  }
  return out;
}

}  // namespace quire::checkpoint
