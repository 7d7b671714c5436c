// Percent-encoding of values in named commands and replies (RFC 3986, section 2.1), because values hold no spaces.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace luce::wire {

// Nothing if a `%` is not followed by two hexadecimal digits.
std::optional<std::string> percent_decode(std::string_view text);

// Letters, digits and `-._~/:,@+=` stay; every other byte becomes %XX.
std::string percent_encode(std::string_view bytes);

}  // namespace luce::wire
