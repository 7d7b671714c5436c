#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace luce {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41, bits reversed

// Tables[k][b]: what byte b does to the checksum when k more bytes follow in the same word ("slicing by 8", Kounavis
// and Berry, 2005).
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
        tables[0][byte] = crc;
    }
    for (std::size_t k = 1; k < 8; ++k) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
        }
    }
    return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t word_at(const std::uint8_t* p) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, sizeof word);
    return word;
}

// All three take and return the checksum as it stands between the two inversions.
std::uint32_t run_portable(std::span<const std::uint8_t> bytes, std::uint32_t crc) {
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        const std::uint64_t word = word_at(bytes.data() + i) ^ crc;
        crc = 0;
        for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
    }
    for (; i < bytes.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ bytes[i]) & 0xff];
    return crc;
}

#if defined(__x86_64__)
[[gnu::target("sse4.2")]] std::uint32_t run_by_instruction(std::span<const std::uint8_t> bytes, std::uint32_t start) {
    std::uint64_t crc = start;
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) crc = _mm_crc32_u64(crc, word_at(bytes.data() + i));
    auto short_crc = static_cast<std::uint32_t>(crc);
    for (; i < bytes.size(); ++i) short_crc = _mm_crc32_u8(short_crc, bytes[i]);
    return short_crc;
}

bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
[[gnu::target("+crc")]] std::uint32_t run_by_instruction(std::span<const std::uint8_t> bytes, std::uint32_t crc) {
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) crc = __crc32cd(crc, word_at(bytes.data() + i));
    for (; i < bytes.size(); ++i) crc = __crc32cb(crc, bytes[i]);
    return crc;
}

bool has_instruction() { return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
std::uint32_t run_by_instruction(std::span<const std::uint8_t> bytes, std::uint32_t crc) {
    return run_portable(bytes, crc);
}

bool has_instruction() { return false; }
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t seed) {
    static const bool by_instruction = has_instruction();
    return by_instruction ? ~run_by_instruction(bytes, ~seed) : ~run_portable(bytes, ~seed);
}

std::uint32_t crc32c_portable(std::span<const std::uint8_t> bytes, std::uint32_t seed) {
    return ~run_portable(bytes, ~seed);
}

}  // namespace luce
