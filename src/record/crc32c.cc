#include "record/crc32c.h"

#include <array>
#include <cstring>

namespace quire::record {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;
constexpr std::size_t kSlices = 8;  // eight bytes a turn: a record is written while a model waits

using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t slice = 1; slice < kSlices; ++slice)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffff;
  std::size_t at = 0;
  for (; at + kSlices <= bytes.size(); at += kSlices) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < kSlices; ++i) crc ^= kTables[kSlices - 1 - i][(word >> (8 * i)) & 0xff];
  }
  for (; at < bytes.size(); ++at)
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<std::uint32_t>(bytes[at])) & 0xff];
  return ~crc;
}

}  // namespace quire::record
