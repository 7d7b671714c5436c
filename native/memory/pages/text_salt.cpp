#include "memory/pages/text_salt.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/sha256.h"

namespace luce::memory {
namespace {

constexpr std::size_t kNamedTokens = 4;  // 30 bits each, so that no two texts are one by chance or by intent

Token name_of(const TextSalt& salt, std::size_t i, Token name) {
    const std::array<std::uint64_t, 3> values = {salt.value, i, static_cast<std::uint32_t>(name)};
    std::array<char, sizeof(values)> bytes{};
    std::memcpy(bytes.data(), values.data(), sizeof(values));
    Sha256 hash;
    hash.update("salt of a text");
    hash.update({bytes.data(), bytes.size()});
    const Sha256::Digest digest = hash.finish();
    std::uint32_t value = 0;
    std::memcpy(&value, digest.data(), sizeof(value));
    return kFirstSaltedName | static_cast<Token>(value % kFirstSaltedName);
}

}  // namespace

Tokens salted(Tokens names, const TextSalt& salt) {
    const std::size_t begin = std::min(static_cast<std::size_t>(salt.from), names.size());
    const std::size_t n = std::min(kNamedTokens, names.size() - begin);
    for (std::size_t i = 0; i < n; ++i) names[begin + i] = name_of(salt, i, names[begin + i]);
    return names;
}

}  // namespace luce::memory
