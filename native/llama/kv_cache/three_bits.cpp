#include "llama/kv_cache/three_bits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <ggml.h>

namespace luce::llama {
namespace {

using Block = std::array<float, kThreeBitBlock>;
using Codes = std::array<std::int32_t, kThreeBitBlock>;  // as wide as the numbers: loops over both are vectors

// Of a normal distribution with a variance of one, and where one ends and the next begins.
constexpr std::array<float, 8> kLevels = {-2.1520F, -1.3439F, -0.7560F, -0.2451F, 0.2451F, 0.7560F, 1.3439F, 2.1520F};
constexpr std::array<float, 7> kBounds = {-1.7480F, -1.0500F, -0.5006F, 0.0F, 0.5006F, 1.0500F, 1.7480F};

// Its own inverse.
void rotate(Block& block) {
    for (std::size_t half = 1; half < kThreeBitBlock; half *= 2) {
        for (std::size_t begin = 0; begin < kThreeBitBlock; begin += 2 * half) {
            for (std::size_t i = begin; i < begin + half; ++i) {
                const float a = block[i];
                const float b = block[i + half];
                block[i] = a + b;
                block[i + half] = a - b;
            }
        }
    }
    constexpr float kScale = 0.125F;  // of 64 numbers: 1 / sqrt(64)
    for (float& number : block) number *= kScale;
}

// Eight codes of three bits in three bytes.
void store(const Codes& codes, std::uint8_t* out) {
    for (std::size_t i = 0; i < kThreeBitBlock; i += 8, out += 3) {
        std::uint32_t bits = 0;
        for (std::size_t j = 0; j < 8; ++j) bits |= static_cast<std::uint32_t>(codes[i + j]) << (3 * j);
        for (std::size_t j = 0; j < 3; ++j) out[j] = static_cast<std::uint8_t>(bits >> (8 * j));
    }
}

void load(const std::uint8_t* in, Codes& codes) {
    for (std::size_t i = 0; i < kThreeBitBlock; i += 8, in += 3) {
        const std::uint32_t bits =
            in[0] | static_cast<std::uint32_t>(in[1]) << 8 | static_cast<std::uint32_t>(in[2]) << 16;
        for (std::size_t j = 0; j < 8; ++j) codes[i + j] = static_cast<std::int32_t>(bits >> (3 * j) & 7);
    }
}

void to_block(Block& block, std::uint8_t* out) {
    float squares = 0;
    for (const float number : block) squares += number * number;
    const float deviation = std::sqrt(squares / kThreeBitBlock);
    Codes codes{};
    for (const float bound : kBounds) {
        const float limit = bound * deviation;
        for (std::size_t i = 0; i < kThreeBitBlock; ++i) codes[i] += block[i] > limit ? 1 : 0;
    }
    float dot = 0;
    float norm = 0;
    for (std::size_t i = 0; i < kThreeBitBlock; ++i) {
        const float level = kLevels[static_cast<std::size_t>(codes[i])];
        dot += block[i] * level;
        norm += level * level;
    }
    const ggml_fp16_t scale = ggml_fp32_to_fp16(dot / norm);
    std::memcpy(out, &scale, sizeof(scale));
    store(codes, out + sizeof(scale));
}

}  // namespace

void to_three_bits(std::span<const float> numbers, bool is_rotated, std::uint8_t* blocks) {
    for (std::size_t begin = 0; begin < numbers.size(); begin += kThreeBitBlock, blocks += kThreeBitBlock_bytes) {
        Block block;
        std::copy_n(numbers.begin() + static_cast<std::ptrdiff_t>(begin), kThreeBitBlock, block.begin());
        if (!is_rotated) rotate(block);
        to_block(block, blocks);
    }
}

void from_three_bits(const std::uint8_t* blocks, bool is_rotated, std::span<float> numbers) {
    for (std::size_t begin = 0; begin < numbers.size(); begin += kThreeBitBlock, blocks += kThreeBitBlock_bytes) {
        ggml_fp16_t scale = 0;
        std::memcpy(&scale, blocks, sizeof(scale));
        Codes codes;
        load(blocks + sizeof(scale), codes);
        Block block;
        const float factor = ggml_fp16_to_fp32(scale);
        for (std::size_t i = 0; i < kThreeBitBlock; ++i)
            block[i] = kLevels[static_cast<std::size_t>(codes[i])] * factor;
        if (!is_rotated) rotate(block);
        std::copy(block.begin(), block.end(), numbers.begin() + static_cast<std::ptrdiff_t>(begin));
    }
}

}  // namespace luce::llama
