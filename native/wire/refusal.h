// Refusals: how the parsers of this folder word what is wrong with a line. Knows no command and no key.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "wire/utf8.h"

namespace luce::wire {

inline constexpr std::size_t kMaxQuotedBytes = 40;

inline Error bad_args(std::string text) { return Error{ErrorCode::bad_args, std::move(text)}; }

// A piece of the line as an error text may show it: a line can hold 16 MiB, a message for people cannot.
inline std::string shortened(std::string_view text) {
    const std::string_view head = utf8_prefix(text, kMaxQuotedBytes);
    return head.size() == text.size() ? std::string(text) : std::string(head) + "...";
}

}  // namespace luce::wire
