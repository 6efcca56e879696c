#include "model/convert.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "tensor/dtype.h"

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
    std::uint64_t x = dummy.key + (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    const float unit = static_cast<float>(x >> 40) * 0x1p-23f - 1.0f;  // [-1, 1)
    return dummy.centre + dummy.spread * unit;
  }
};

template <class Reader>
void gather(const Conversion& c, const Reader& read, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    float* target = c.target + r * c.cols;
    const std::int64_t first = c.begin + r * c.row_step;
    if (c.col_step == 1) {
      for (std::int64_t i = 0; i < c.cols; ++i) target[i] = read(first + i) + c.add;
    } else {
      for (std::int64_t i = 0; i < c.cols; ++i) target[i] = read(first + i * c.col_step) + c.add;
    }
  }
}

void convert_rows(const Conversion& c, std::int64_t row_begin, std::int64_t row_end) {
  if (c.source == nullptr) return gather(c, DummyReader{c.dummy}, row_begin, row_end);
  switch (c.format) {
    case WeightFormat::f32:
      return gather(c, F32Reader{c.source}, row_begin, row_end);
    case WeightFormat::f16:
      return gather(c, F16Reader{c.source}, row_begin, row_end);
    case WeightFormat::bf16:
      return gather(c, Bf16Reader{c.source}, row_begin, row_end);
    default:
      QUIRE_CHECK(false, "format={}", weight_format_info(c.format).name);
  }
}

struct Piece {
  const Conversion* conversion;
  std::int64_t row_begin;
  std::int64_t row_end;
};

std::vector<Piece> cut(const std::vector<Conversion>& conversions) {
  std::vector<Piece> pieces;
  for (const Conversion& c : conversions) {
    const std::int64_t step = std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, c.cols));
    for (std::int64_t row = 0; row < c.rows; row += step)
      pieces.push_back({&c, row, std::min(c.rows, row + step)});
  }
  return pieces;
}

}  // namespace

void run_conversions(const std::vector<Conversion>& conversions, int threads) {
  const std::vector<Piece> pieces = cut(conversions);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++)
      convert_rows(*pieces[i].conversion, pieces[i].row_begin, pieces[i].row_end);
  };
  const int helpers = std::min<int>(std::max(threads, 1), static_cast<int>(pieces.size())) - 1;
  std::vector<std::jthread> team;
  for (int i = 0; i < helpers; ++i) team.emplace_back(work);
  work();
}

}  // namespace quire::model
