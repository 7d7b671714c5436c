#include "memory/pages/page_name.h"

#include <algorithm>
#include <bit>

#include "base/sha256.h"

namespace luce::memory {
namespace {

static_assert(std::endian::native == std::endian::little);

using Sixteen = std::array<std::uint8_t, 16>;

constexpr std::string_view kDigits = "0123456789abcdef";

template <typename T>
std::string_view view_of(std::span<const T> values) {
    return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

PageName first_half(Sha256& hash) {
    const Sha256::Digest digest = hash.finish();
    PageName name;
    std::copy_n(digest.begin(), name.bytes.size(), name.bytes.begin());
    return name;
}

PageName hash_of(const PageName& before, std::span<const Token> tokens) {
    Sha256 hash;
    hash.update(view_of<std::uint8_t>(before.bytes));
    hash.update(view_of(tokens));
    return first_half(hash);
}

std::string hex_of(const Sixteen& bytes) {
    std::string text;
    text.reserve(2 * bytes.size());
    for (const std::uint8_t byte : bytes) {
        text.push_back(kDigits[byte >> 4]);
        text.push_back(kDigits[byte & 15]);
    }
    return text;
}

std::optional<Sixteen> sixteen_of(std::string_view hex) {
    Sixteen bytes{};
    if (hex.size() != 2 * bytes.size()) return std::nullopt;
    for (std::size_t i = 0; i < hex.size(); ++i) {
        const std::size_t digit = kDigits.find(hex[i]);
        if (digit == std::string_view::npos) return std::nullopt;
        bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] << 4 | digit);
    }
    return bytes;
}

}  // namespace

PageName root_name(std::string_view identity) {
    Sha256 hash;
    hash.update("luce memory root\n");
    hash.update(identity);
    return first_half(hash);
}

PageName next_name(const PageName& parent, std::span<const Token, kPageSize> tokens) { return hash_of(parent, tokens); }

PageName checkpoint_name(const PageName& page, std::span<const Token> rest) { return hash_of(page, rest); }

std::string to_hex(const PageName& name) { return hex_of(name.bytes); }

std::string to_hex(const MemoryIdentity& identity) { return hex_of(identity.bytes); }

std::optional<PageName> page_name_of(std::string_view hex) {
    const std::optional<Sixteen> bytes = sixteen_of(hex);
    return bytes ? std::optional(PageName{*bytes}) : std::nullopt;
}

std::optional<MemoryIdentity> memory_identity_of(std::string_view hex) {
    const std::optional<Sixteen> bytes = sixteen_of(hex);
    return bytes ? std::optional(MemoryIdentity{*bytes}) : std::nullopt;
}

}  // namespace luce::memory
