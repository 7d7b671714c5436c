// The compression of SHA-256, which is all of its work: whole blocks into a state, by the processor's own instructions
// where it has them. For sha256.h; nobody else needs it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace luce {

using Sha256State = std::array<std::uint32_t, 8>;

void sha256_blocks(Sha256State& state, const std::uint8_t* blocks, std::size_t n_blocks);

// The same without those instructions; for its test.
void sha256_blocks_portable(Sha256State& state, const std::uint8_t* blocks, std::size_t n_blocks);

}  // namespace luce
