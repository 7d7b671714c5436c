// Well-formedness by the table of RFC 3629, section 4: the second byte's range is what excludes overlong forms,
// surrogates and everything above U+10FFFF. Must not know what the text is for.
#include "wire/utf8.h"

namespace luce::wire {

namespace {

struct Lead {
    std::size_t n_bytes;
    unsigned char second_min;
    unsigned char second_max;
};

Lead lead_of(unsigned char byte) {
    if (byte < 0x80) return {1, 0, 0};
    if (byte < 0xC2) return {0, 0, 0};
    if (byte < 0xE0) return {2, 0x80, 0xBF};
    if (byte == 0xE0) return {3, 0xA0, 0xBF};
    if (byte == 0xED) return {3, 0x80, 0x9F};
    if (byte < 0xF0) return {3, 0x80, 0xBF};
    if (byte == 0xF0) return {4, 0x90, 0xBF};
    if (byte < 0xF4) return {4, 0x80, 0xBF};
    if (byte == 0xF4) return {4, 0x80, 0x8F};
    return {0, 0, 0};
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

std::size_t utf8_character_bytes(std::string_view text) {
    if (text.empty()) return 0;
    const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
    if (lead.n_bytes <= 1) return lead.n_bytes;
    if (text.size() < lead.n_bytes) return 0;
    const auto second = static_cast<unsigned char>(text[1]);
    if (second < lead.second_min || second > lead.second_max) return 0;
    for (std::size_t i = 2; i < lead.n_bytes; ++i) {
        if (!is_continuation(text[i])) return 0;
    }
    return lead.n_bytes;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t n_bytes = utf8_character_bytes(text);
        if (n_bytes == 0) return false;
        text.remove_prefix(n_bytes);
    }
    return true;
}

std::string_view utf8_prefix(std::string_view text, std::size_t max_bytes) {
    if (text.size() <= max_bytes) return text;
    std::size_t end = max_bytes;
    // A character has at most three continuation bytes; going back further would only follow malformed text.
    for (int n_back = 0; n_back < 3 && end > 0 && is_continuation(text[end]); ++n_back) --end;
    return text.substr(0, end);
}

}  // namespace luce::wire
