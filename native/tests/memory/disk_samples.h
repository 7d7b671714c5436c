// What the tests of files share: a folder of their own, made-up pages and checkpoints, ways to damage bytes, all from a
// seed.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "memory/pages/page_name.h"
#include "memory/tiers/tier_file.h"

namespace luce::memory::samples {

inline constexpr char kIdentity[] = "00112233445566778899aabbccddeeff";
inline constexpr char kOtherIdentity[] = "ffeeddccbbaa99887766554433221100";

inline MemoryIdentity identity() { return *memory_identity_of(kIdentity); }

inline TierLimits limits() { return {.row_bytes = 24, .max_state_bytes = 4096, .n_vocab = 300}; }

struct TemporaryFolder {
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "luce-test-XXXXXX").string();
        path = ::mkdtemp(pattern.data());
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() { std::filesystem::remove_all(path); }
    std::filesystem::path path;
};

using Random = std::mt19937_64;

inline std::size_t below(Random& random, std::size_t n) { return random() % n; }

inline Bytes random_bytes(Random& random, std::size_t n) {
    Bytes bytes(n);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    return bytes;
}

inline Tokens random_tokens(Random& random, std::size_t n) {
    Tokens tokens(n);
    for (Token& token : tokens) token = static_cast<Token>(below(random, 300));
    return tokens;
}

inline std::span<const Token, kPageSize> as_page(const Tokens& tokens) {
    return std::span<const Token, kPageSize>(tokens.data(), kPageSize);
}

inline PageFile random_page(Random& random, const PageName& parent, const TierLimits& of = limits()) {
    Tokens tokens = random_tokens(random, kPageSize);
    const PageName name = next_name(parent, as_page(tokens));
    auto rows = std::make_shared<const Bytes>(random_bytes(random, kPageSize * of.row_bytes));
    return {name, parent, std::move(tokens), std::move(rows)};
}

// Some pages have none, some one of zero, the others all that a finite number may be.
inline PageScores random_scores(Random& random, std::size_t n) {
    PageScores scores(n);
    for (std::optional<float>& score : scores) {
        const auto any = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        if (below(random, 3) > 0) score = below(random, 4) > 0 && std::isfinite(any) ? any : 0.0F;
    }
    return scores;
}

inline CheckpointFile random_checkpoint(Random& random, const PageName& page, std::size_t n_rest, std::size_t n_state,
                                        bool with_logits, const TierLimits& of = limits(), std::size_t n_scores = 0) {
    auto data = std::make_shared<CheckpointData>();
    data->state = random_bytes(random, n_state);
    data->rows = random_bytes(random, n_rest * of.row_bytes);
    for (std::int32_t i = 0; with_logits && i < of.n_vocab; ++i) data->logits.push_back(static_cast<float>(i) / 7);
    Tokens rest = random_tokens(random, n_rest);
    const PageName name = checkpoint_name(page, rest);
    return {name, page, std::move(rest), std::move(data), random_scores(random, n_scores)};
}

inline bool same(const CheckpointData& a, const CheckpointData& b) {
    return a.state == b.state && a.rows == b.rows && a.logits == b.logits;
}

inline WriteBytes append_to(Bytes& out) {
    return [&out](std::span<const std::uint8_t> bytes) -> Result<void> {
        out.insert(out.end(), bytes.begin(), bytes.end());
        return {};
    };
}

inline Bytes content_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void put(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        if (!entry.is_directory()) files.push_back(entry.path());
    }
    return files;
}

// One of the ways in which files get damaged: flipped bits, lost or added bytes, a stretch of zeros, a stretch moved.
// What comes out differs from what went in. REQUIRES: bytes are not empty.
inline Bytes damaged(Random& random, const Bytes& bytes) {
    for (;;) {
        Bytes bad = bytes;
        const std::size_t at = below(random, bytes.size());
        const auto place = bad.begin() + static_cast<std::ptrdiff_t>(at);
        const std::size_t n = 1 + below(random, bytes.size() - at);
        switch (below(random, 6)) {
            case 0: *place ^= static_cast<std::uint8_t>(1U << below(random, 8)); break;
            case 1: bad.resize(at); break;
            case 2: bad.resize(bytes.size() + 1 + below(random, 100)); break;
            case 3: std::fill_n(place, n, std::uint8_t{0}); break;
            case 4: bad.erase(place, place + static_cast<std::ptrdiff_t>(n)); break;
            default: std::rotate(bad.begin(), place, bad.end()); break;
        }
        if (bad != bytes) return bad;
    }
}

// A header that says something else and whose checksum, its last four bytes, fits again.
inline Bytes with_edited_header(Random& random, const Bytes& bytes, std::size_t header_bytes) {
    static constexpr std::uint8_t kValues[] = {0, 1, 2, 63, 64, 65, 127, 128, 255};
    for (;;) {
        Bytes bad = bytes;
        for (std::size_t edits = 1 + below(random, 3); edits > 0; --edits) {
            bad[below(random, header_bytes - 4)] = kValues[below(random, std::size(kValues))];
        }
        if (bad == bytes) continue;
        const std::uint32_t checksum = crc32c(std::span(bad).first(header_bytes - 4));
        std::copy_n(reinterpret_cast<const std::uint8_t*>(&checksum), 4,
                    bad.begin() + static_cast<std::ptrdiff_t>(header_bytes - 4));
        return bad;
    }
}

// How often to do what can be done at any length: the variable's value, where it is set.
inline int times(const char* variable, int otherwise) {
    const char* value = std::getenv(variable);
    return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace luce::memory::samples
