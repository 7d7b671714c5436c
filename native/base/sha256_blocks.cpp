#include "base/sha256_blocks.h"

#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace luce {
namespace {

constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::array<std::uint32_t, 64> schedule(const std::uint8_t* block) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 16; ++i) {
        const std::uint8_t* p = block + 4 * i;
        w[i] = std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
    }
    for (std::size_t i = 16; i < 64; ++i) {
        const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    return w;
}

void compress(Sha256State& state, const std::uint8_t* block) {
    const std::array<std::uint32_t, 64> w = schedule(block);
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
        const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
        const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> sums = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += sums[i];
}

#if defined(__x86_64__)
// One step of the message schedule: the words t .. t + 3 from the sixteen before them.
[[gnu::target("sha,sse4.1")]] inline __m128i next_words(__m128i w16, __m128i w12, __m128i w8, __m128i w4) {
    return _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w16, w12), _mm_alignr_epi8(w4, w8, 4)), w4);
}

// Four rounds. The instructions keep the eight variables as {a, b, e, f} and {c, d, g, h} (Intel's "SHA Extensions").
[[gnu::target("sha,sse4.1")]] inline void four_rounds(__m128i& abef, __m128i& cdgh, __m128i words, std::size_t round) {
    const __m128i constants = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kRound.data() + round));
    const __m128i sums = _mm_add_epi32(words, constants);
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sums, 0x0e));
}

[[gnu::target("sha,sse4.1")]] void blocks_by_instruction(Sha256State& state, const std::uint8_t* blocks,
                                                         std::size_t n_blocks) {
    const __m128i big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    auto [a, b, c, d, e, f, g, h] = state;
    const auto lane = [](std::uint32_t word) { return static_cast<int>(word); };
    __m128i abef = _mm_set_epi32(lane(a), lane(b), lane(e), lane(f));
    __m128i cdgh = _mm_set_epi32(lane(c), lane(d), lane(g), lane(h));
    for (; n_blocks > 0; --n_blocks, blocks += 64) {
        const __m128i abef_before = abef;
        const __m128i cdgh_before = cdgh;
        __m128i w[4];
        for (std::size_t i = 0; i < 4; ++i) {
            w[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16 * i));
            w[i] = _mm_shuffle_epi8(w[i], big_endian);
            four_rounds(abef, cdgh, w[i], 4 * i);
        }
        for (std::size_t round = 16; round < 64; round += 16) {
            for (std::size_t i = 0; i < 4; ++i) {
                w[i] = next_words(w[i], w[(i + 1) % 4], w[(i + 2) % 4], w[(i + 3) % 4]);
                four_rounds(abef, cdgh, w[i], round + 4 * i);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    std::array<std::uint32_t, 4> fe_ba{};
    std::array<std::uint32_t, 4> hg_dc{};
    _mm_storeu_si128(reinterpret_cast<__m128i*>(fe_ba.data()), abef);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(hg_dc.data()), cdgh);
    state = {fe_ba[3], fe_ba[2], hg_dc[3], hg_dc[2], fe_ba[1], fe_ba[0], hg_dc[1], hg_dc[0]};
}

bool has_instructions() {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}
#else
void blocks_by_instruction(Sha256State& state, const std::uint8_t* blocks, std::size_t n_blocks) {
    sha256_blocks_portable(state, blocks, n_blocks);
}

bool has_instructions() { return false; }
#endif

}  // namespace

void sha256_blocks_portable(Sha256State& state, const std::uint8_t* blocks, std::size_t n_blocks) {
    for (; n_blocks > 0; --n_blocks, blocks += 64) compress(state, blocks);
}

void sha256_blocks(Sha256State& state, const std::uint8_t* blocks, std::size_t n_blocks) {
    static const bool by_instruction = has_instructions();
    if (by_instruction) {
        blocks_by_instruction(state, blocks, n_blocks);
    } else {
        sha256_blocks_portable(state, blocks, n_blocks);
    }
}

}  // namespace luce
