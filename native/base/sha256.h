// SHA-256 (FIPS 180-4), for names that must not collide by chance or by intent. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/sha256_blocks.h"

namespace luce {

class Sha256 {
public:
    using Digest = std::array<std::uint8_t, 32>;

    void update(std::string_view bytes);
    Digest finish();

private:
    Sha256State state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::uint8_t, 64> block_{};
    std::size_t n_block_ = 0;
    std::uint64_t n_bytes_ = 0;
};

std::string to_hex(const Sha256::Digest& digest);

}  // namespace luce
