// CRC-32C (Castagnoli), which finds what a disk or a cut-off write did to bytes; no defence against intent. Pure; uses
// the processor's instruction where there is one.
#pragma once

#include <cstdint>
#include <span>

namespace luce {

// crc32c(b, crc32c(a)) is the checksum of a followed by b.
std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t seed = 0);

// The same without that instruction; for its test.
std::uint32_t crc32c_portable(std::span<const std::uint8_t> bytes, std::uint32_t seed = 0);

}  // namespace luce
