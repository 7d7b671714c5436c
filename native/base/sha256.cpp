#include "base/sha256.h"

#include <algorithm>

namespace luce {

void Sha256::update(std::string_view bytes) {
    n_bytes_ += bytes.size();
    while (!bytes.empty()) {
        if (n_block_ == 0 && bytes.size() >= block_.size()) {
            const std::size_t n_blocks = bytes.size() / block_.size();
            sha256_blocks(state_, reinterpret_cast<const std::uint8_t*>(bytes.data()), n_blocks);
            bytes.remove_prefix(n_blocks * block_.size());
            continue;
        }
        const std::size_t n = std::min(bytes.size(), block_.size() - n_block_);
        std::copy_n(bytes.begin(), n, block_.begin() + static_cast<std::ptrdiff_t>(n_block_));
        n_block_ += n;
        bytes.remove_prefix(n);
        if (n_block_ < block_.size()) return;
        sha256_blocks(state_, block_.data(), 1);
        n_block_ = 0;
    }
}

Sha256::Digest Sha256::finish() {
    const std::uint64_t n_bits = n_bytes_ * 8;
    static constexpr std::array<char, 64> kPadding = {'\x80'};
    update(std::string_view(kPadding.data(), (n_block_ < 56 ? 56 : 120) - n_block_));
    std::array<char, 8> length{};
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(n_bits >> (56 - 8 * i));
    update(std::string_view(length.data(), length.size()));
    Digest digest{};
    for (std::size_t i = 0; i < 32; ++i) digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

std::string to_hex(const Sha256::Digest& digest) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (const std::uint8_t byte : digest) {
        text.push_back(kDigits[byte >> 4]);
        text.push_back(kDigits[byte & 15]);
    }
    return text;
}

}  // namespace luce
