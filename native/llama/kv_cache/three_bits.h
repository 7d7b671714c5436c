// Three bits: blocks of 64 numbers in 26 bytes. A block is rotated by a Walsh-Hadamard transform, which spreads
// outliers until all numbers look normally distributed; each becomes the nearest of the eight levels that are best for
// such ones (Lloyd 1982, Max 1960), times a scale of the block that fits them least-squares. As TurboQuant does
// (Zandieh et al. 2025), with one scale in place of a norm.
//
// Layout: the scale (fp16, 2 bytes, little endian), then 64 levels of 3 bits, the first in the lowest bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace luce::llama {

inline constexpr std::size_t kThreeBitBlock = 64;  // numbers
inline constexpr std::size_t kThreeBitBlock_bytes = 26;

// `is_rotated`: the numbers have been rotated before; a second time would undo it. REQUIRES: a multiple of
// kThreeBitBlock numbers, all finite, and room for their blocks (numbers).
void to_three_bits(std::span<const float> numbers, bool is_rotated, std::uint8_t* blocks);
void from_three_bits(const std::uint8_t* blocks, bool is_rotated, std::span<float> numbers);

}  // namespace luce::llama
