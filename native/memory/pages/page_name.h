// Names of pages and checkpoints: what the same tokens have the same of, on every machine with the same memory
// identity. Pure; a name says nothing of where its bytes lie.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/token.h"
#include "memory/tiers/blob.h"

namespace luce::memory {

// What makes two memories interchangeable (model, KV types, draft, salt …), hashed by whoever knows them.
struct MemoryIdentity {
    std::array<std::uint8_t, 16> bytes{};
    bool operator==(const MemoryIdentity&) const = default;
};

// The name before the first page of a text.
PageName root_name(std::string_view identity);

// The first 16 bytes of SHA-256 over the parent's name and the page's tokens, little-endian.
PageName next_name(const PageName& parent, std::span<const Token, kPageSize> tokens);

// Of the checkpoint after the page and `rest` more tokens. REQUIRES: rest.size() < kPageSize (so it is nobody's
// next_name).
PageName checkpoint_name(const PageName& page, std::span<const Token> rest);

// 32 lower-case hexadecimal digits, and back; nothing where the text is anything else.
std::string to_hex(const PageName& name);
std::string to_hex(const MemoryIdentity& identity);
std::optional<PageName> page_name_of(std::string_view hex);
std::optional<MemoryIdentity> memory_identity_of(std::string_view hex);

}  // namespace luce::memory
