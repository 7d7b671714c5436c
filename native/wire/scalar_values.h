// Single values of a command line: strict numbers, flags, token ids, texts. Strict means that the whole word is the
// number: no `+`, no hexadecimal, no `-0` for a whole number, nothing non-finite. An error's text says what is wrong
// with the value; whoever knows the key puts it before. Knows no key and no command.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/token.h"

namespace luce::wire {

inline constexpr std::int32_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// `-?[0-9]+`, whatever its size: what tells a positional command's n_gen from a word.
bool looks_like_integer(std::string_view text);

Result<std::int32_t> parse_int32(std::string_view text, std::int32_t min, std::int32_t max);
Result<std::uint64_t> parse_uint64(std::string_view text);

// 0 .. 2^31-1
inline Result<std::int32_t> parse_count(std::string_view text) { return parse_int32(text, 0, kMaxInt32); }

// A count that a command knows by its place, or nothing if the line ends before it: the error's text names it.
Result<std::int32_t> parse_placed_count(std::string_view name, std::optional<std::string_view> word);

// 0 or 1.
Result<bool> parse_flag(std::string_view text);

// A whole number outside 0 .. 2^31-1 is token_out_of_range, anything else that is wrong bad_args.
Result<Token> parse_token(std::string_view text);

struct RealRange {
    float min;
    float max;
    bool min_allowed;
};
inline constexpr float kMaxReal = std::numeric_limits<float>::max();
inline constexpr RealRange kAnyReal{-kMaxReal, kMaxReal, true};
inline constexpr RealRange kNotNegative{0, kMaxReal, true};
inline constexpr RealRange kPositive{0, kMaxReal, false};
inline constexpr RealRange kProbability{0, 1, true};
inline constexpr RealRange kPositiveProbability{0, 1, false};

// Read as binary64, rounded to binary32, then compared with the range.
Result<float> parse_real(std::string_view text, RealRange range);

// Percent-decoded; what comes out must be UTF-8 without a NUL.
Result<std::string> parse_text(std::string_view text);

}  // namespace luce::wire
