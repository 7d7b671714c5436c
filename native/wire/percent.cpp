// Percent-encoding byte by byte; must not know which value it is, and does not judge the decoded bytes.
#include "wire/percent.h"

namespace luce::wire {

namespace {

constexpr std::string_view kHexDigits = "0123456789ABCDEF";

bool stays(char byte) {
    const bool is_alphanumeric =
        (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9');
    return is_alphanumeric || std::string_view("-._~/:,@+=").find(byte) != std::string_view::npos;
}

std::optional<unsigned> hex_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return std::nullopt;
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text) {
    std::string bytes;
    bytes.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            bytes += text[i];
            continue;
        }
        if (text.size() - i < 3) return std::nullopt;
        const std::optional<unsigned> high = hex_value(text[i + 1]);
        const std::optional<unsigned> low = hex_value(text[i + 2]);
        if (!high || !low) return std::nullopt;
        bytes += static_cast<char>(*high * 16 + *low);
        i += 2;
    }
    return bytes;
}

std::string percent_encode(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size());
    for (const char byte : bytes) {
        if (stays(byte)) {
            text += byte;
            continue;
        }
        const auto code = static_cast<unsigned char>(byte);
        text += '%';
        text += kHexDigits[code / 16];
        text += kHexDigits[code % 16];
    }
    return text;
}

}  // namespace luce::wire
