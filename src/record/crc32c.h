// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), as in RFC 3720: what each frame of a record carries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire::record {

std::uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace quire::record
