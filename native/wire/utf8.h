// UTF-8 as the protocol needs it: is it well formed (RFC 3629: no overlong forms, no surrogates), and where may it be
// cut. Knows no lines and no commands.
#pragma once

#include <cstddef>
#include <string_view>

namespace luce::wire {

// Bytes of the well-formed character that `text` begins with; 0 if it begins with none.
std::size_t utf8_character_bytes(std::string_view text);

bool is_utf8(std::string_view text);

// Below space, or DEL: what no reply line may hold.
inline bool is_control(char byte) { return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F; }

// The longest prefix of at most `max_bytes` that cuts no character in two.
std::string_view utf8_prefix(std::string_view text, std::size_t max_bytes);

}  // namespace luce::wire
