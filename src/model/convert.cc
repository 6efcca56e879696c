#include "model/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/mix.h"
#include "ops/expand.h"

namespace quire::model {
namespace {

// Elements of one piece of work: small enough to share out, large enough not to matter.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

struct F32Reader {
  const std::byte* data;
  float operator()(std::int64_t i) const {
    float value;
    std::memcpy(&value, data + i * 4, 4);
    return value;
  }
};

struct Bf16Reader {
  const std::byte* data;
  float operator()(std::int64_t i) const {
    std::uint16_t bits;
    std::memcpy(&bits, data + i * 2, 2);
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
};

struct F16Reader {
  const std::byte* data;
  float operator()(std::int64_t i) const {
    std::uint16_t bits;
    std::memcpy(&bits, data + i * 2, 2);
    return f16_to_f32(bits);
  }
};

struct DummyReader {
  DummySource dummy;
  float operator()(std::int64_t i) const {
    // splitmix64 of the element's index: a counter, so any element can be had alone.
    const std::uint64_t x = split_mix(dummy.key + (static_cast<std::uint64_t>(i) + 1) * kSplitMixStep);
    const float unit = static_cast<float>(x >> 40) * 0x1p-23f - 1.0f;  // [-1, 1)
    return dummy.centre + dummy.spread * unit;
  }
};

// Row r of the target in float32.
template <class Reader>
void gather(const Conversion& c, const Reader& read, std::int64_t r, float* row) {
  const std::int64_t first = c.begin + r * c.row_step;
  if (c.col_step == 1) {
    for (std::int64_t i = 0; i < c.cols; ++i) row[i] = read(first + i) + c.add;
  } else {
    for (std::int64_t i = 0; i < c.cols; ++i) row[i] = read(first + i * c.col_step) + c.add;
  }
}

void expand_blocks(const Conversion& c, std::int64_t r, float* row) {
  const std::int64_t block = weight_format_info(c.format).block_elements;
  const std::int64_t first = c.begin + r * c.row_step;
  QUIRE_CHECK(c.col_step == 1 && first % block == 0 && c.cols % block == 0,
              "step={} first={} cols={} block={}", c.col_step, first, c.cols, block);
  ops::expand(c.format, c.source + first / block * weight_format_info(c.format).block_bytes, row, c.cols);
  for (std::int64_t i = 0; c.add != 0.0f && i < c.cols; ++i) row[i] += c.add;
}

void read_row(const Conversion& c, std::int64_t r, float* row) {
  if (c.source == nullptr) return gather(c, DummyReader{c.dummy}, r, row);
  switch (c.format) {
    case WeightFormat::f32:
      return gather(c, F32Reader{c.source}, r, row);
    case WeightFormat::f16:
      return gather(c, F16Reader{c.source}, r, row);
    case WeightFormat::bf16:
      return gather(c, Bf16Reader{c.source}, r, row);
    default:
      return expand_blocks(c, r, row);
  }
}

// tensor/dtype.h's conversion without a branch, so that it runs on vectors.
std::uint16_t round_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(nan ? quiet : rounded);
}

struct Piece {
  const Conversion* conversion;
  std::int64_t row_begin;
  std::int64_t row_end;

  std::int64_t row_bytes() const {
    return conversion->cols * static_cast<std::int64_t>(dtype_bytes(conversion->type));
  }
  std::int64_t bytes() const { return (row_end - row_begin) * row_bytes(); }
  char* target() const { return static_cast<char*>(conversion->target) + row_begin * row_bytes(); }
};

bool holds_nan(const char* e4m3, std::int64_t count) {
  bool nan = false;
  for (std::int64_t i = 0; i < count; ++i) nan |= (e4m3[i] & 0x7f) == 0x7f;
  return nan;
}

// The piece's rows at `out`. `row`: the thread's own, as long as the longest row.
void convert(const Piece& piece, char* out, std::vector<float>& row) {
  const Conversion& c = *piece.conversion;
  const bool same = c.type == DType::bf16 ? c.format == WeightFormat::bf16 : c.type == DType::fp8_e4m3;
  const bool as_stored = same && c.source != nullptr && c.col_step == 1 && c.add == 0.0f;
  for (std::int64_t r = piece.row_begin; r < piece.row_end; ++r, out += piece.row_bytes()) {
    if (c.type == DType::f32) {
      read_row(c, r, reinterpret_cast<float*>(out));
    } else if (as_stored) {
      const auto bytes = static_cast<std::int64_t>(dtype_bytes(c.type));
      std::memcpy(out, c.source + (c.begin + r * c.row_step) * bytes,
                  static_cast<std::size_t>(piece.row_bytes()));
    } else if (c.type == DType::fp8_e4m3) {
      read_row(c, r, row.data());
      for (std::int64_t i = 0; i < c.cols; ++i) out[i] = static_cast<char>(f32_to_fp8_e4m3(row[i]));
    } else {
      read_row(c, r, row.data());
      auto* rounded = reinterpret_cast<std::uint16_t*>(out);
      for (std::int64_t i = 0; i < c.cols; ++i) rounded[i] = round_to_bf16(row[i]);
    }
  }
}

std::vector<Piece> cut(const std::vector<Conversion>& conversions) {
  std::vector<Piece> pieces;
  for (const Conversion& c : conversions) {
    const bool stays_fp8 =
        c.source == nullptr || (c.format == WeightFormat::fp8_e4m3 && c.col_step == 1 && c.add == 0.0f);
    QUIRE_CHECK(c.type == DType::f32 || c.type == DType::bf16 || (c.type == DType::fp8_e4m3 && stays_fp8),
                "type={} of {}", to_string(c.type), weight_format_info(c.format).name);
    const std::int64_t step = std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, c.cols));
    for (std::int64_t row = 0; row < c.rows; row += step)
      pieces.push_back({&c, row, std::min(c.rows, row + step)});
  }
  return pieces;
}

// A thread's way to the device: two stretches of page-locked memory in turn.
class Courier {
 public:
  Courier(platform::Device& device, char* staging, std::int64_t bytes) : stream_(device.make_stream()) {
    for (int i = 0; i < 2; ++i) slots_[i] = {staging + i * bytes, device.make_event()};
  }
  ~Courier() { stream_->synchronize(); }
  char* next_slot() {
    current_ = 1 - current_;
    slots_[current_].sent->wait();
    return slots_[current_].data;
  }
  void send(void* target, std::int64_t bytes) {
    stream_->copy(target, slots_[current_].data, bytes);
    stream_->record(*slots_[current_].sent);
  }

 private:
  struct Slot {
    char* data = nullptr;
    std::unique_ptr<platform::Event> sent;
  };
  std::unique_ptr<platform::Stream> stream_;
  Slot slots_[2];
  int current_ = 0;
};

}  // namespace

Status run_conversions(const std::vector<Conversion>& conversions, platform::Device& device, int threads) {
  const std::vector<Piece> pieces = cut(conversions);
  if (pieces.empty()) return {};
  std::int64_t longest_row = 0, longest_piece = 0;
  for (const Piece& piece : pieces) {
    longest_row = std::max(longest_row, piece.conversion->cols);
    longest_piece = std::max(longest_piece, (piece.bytes() + 63) / 64 * 64);
  }
  const int workers = std::min<int>(std::max(threads, 1), static_cast<int>(pieces.size()));
  const bool direct = device.info().host_memory;
  std::unique_ptr<platform::Buffer> staging;
  if (!direct) {
    QUIRE_TRY(memory, device.allocate_pinned(2 * longest_piece * workers, "loading weights"));
    staging = std::move(memory);
  }
  std::atomic<std::size_t> next = 0, damaged = pieces.size();
  const auto work = [&](int worker) {
    std::vector<float> row(static_cast<std::size_t>(longest_row));
    std::optional<Courier> courier;
    if (!direct) courier.emplace(device, staging->as<char>() + 2 * worker * longest_piece, longest_piece);
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      const Piece& piece = pieces[i];
      char* out = courier ? courier->next_slot() : piece.target();
      convert(piece, out, row);
      if (piece.conversion->type == DType::fp8_e4m3 && holds_nan(out, piece.bytes())) damaged = i;
      if (courier) courier->send(piece.target(), piece.bytes());
    }
  };
  std::vector<std::jthread> team;
  for (int i = 1; i < workers; ++i) team.emplace_back(work, i);
  work(0);
  team.clear();
  if (damaged == pieces.size()) return {};
  return bad_input(
      fmt::format("the F8_E4M3 matrix {} holds NaN: the file is damaged", pieces[damaged].conversion->name));
}

}  // namespace quire::model
