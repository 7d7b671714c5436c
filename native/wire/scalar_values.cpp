// std::from_chars does the reading, because it knows no locale; what it is too generous with is refused here. Must not
// know which key a value belongs to.
#include "wire/scalar_values.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "wire/percent.h"
#include "wire/refusal.h"
#include "wire/utf8.h"

namespace luce::wire {

namespace {

constexpr std::string_view kDigits = "0123456789";

std::string_view without_minus(std::string_view text) {
    if (text.starts_with('-')) text.remove_prefix(1);
    return text;
}

// A number that is not zero and is written as such, yet too small for binary64, would silently become 0.
bool lost_its_digits(std::string_view text, double value) {
    const std::string_view mantissa = text.substr(0, text.find_first_of("eE"));
    return value == 0 && mantissa.find_first_of("123456789") != std::string_view::npos;
}

bool is_strict_integer(std::string_view text) {
    const bool is_negative_zero = text.starts_with('-') && text.find_first_of("123456789") == std::string_view::npos;
    return looks_like_integer(text) && !is_negative_zero;
}

// Nothing if the number does not fit; REQUIRES: is_strict_integer(text)
template <typename T>
std::optional<T> read_integer(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return std::nullopt;
    return value;
}

template <typename T>
Result<T> parse_integer(std::string_view text, T min, T max) {
    if (!is_strict_integer(text)) return bad_args("is not a whole number");
    const std::optional<T> value = read_integer<T>(text);
    if (value && *value >= min && *value <= max) return *value;
    return bad_args("must be from " + std::to_string(min) + " to " + std::to_string(max));
}

std::string describe(const RealRange& range) {
    if (range.max <= 1) return range.min_allowed ? "must be from 0 to 1" : "must be above 0 and at most 1";
    return range.min_allowed ? "must be 0 or more" : "must be above 0";
}

}  // namespace

bool looks_like_integer(std::string_view text) {
    const std::string_view digits = without_minus(text);
    return !digits.empty() && digits.find_first_not_of(kDigits) == std::string_view::npos;
}

Result<std::int32_t> parse_int32(std::string_view text, std::int32_t min, std::int32_t max) {
    return parse_integer<std::int32_t>(text, min, max);
}

Result<std::uint64_t> parse_uint64(std::string_view text) {
    return parse_integer<std::uint64_t>(text, 0, std::numeric_limits<std::uint64_t>::max());
}

Result<std::int32_t> parse_placed_count(std::string_view name, std::optional<std::string_view> word) {
    if (!word) return bad_args(std::string(name) + " is missing");
    Result<std::int32_t> number = parse_count(*word);
    if (!number) return bad_args(std::string(name) + " '" + shortened(*word) + "' " + number.error().text);
    return number;
}

Result<bool> parse_flag(std::string_view text) {
    if (text == "0") return false;
    if (text == "1") return true;
    return bad_args("must be 0 or 1");
}

Result<Token> parse_token(std::string_view text) {
    if (!is_strict_integer(text)) return bad_args("'" + shortened(text) + "' is not a token id");
    const std::optional<Token> token = read_integer<Token>(text);
    if (token && *token >= 0) return *token;
    return Error{ErrorCode::token_out_of_range, "no vocabulary has the token id " + shortened(text)};
}

Result<float> parse_real(std::string_view text, RealRange range) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_whole = end == text.data() + text.size();
    if (error == std::errc::invalid_argument || !is_whole) return bad_args("is not a number");
    const auto rounded = static_cast<float>(value);
    if (error != std::errc() || !std::isfinite(rounded) || lost_its_digits(text, value)) {
        return bad_args("is not a finite number that a float can hold");
    }
    const bool above_min = range.min_allowed ? rounded >= range.min : rounded > range.min;
    if (!above_min || rounded > range.max) return bad_args(describe(range));
    return rounded;
}

Result<std::string> parse_text(std::string_view text) {
    std::optional<std::string> decoded = percent_decode(text);
    if (!decoded) return bad_args("has a % without two hexadecimal digits after it");
    if (decoded->find('\0') != std::string::npos) return bad_args("holds a NUL byte");
    if (!is_utf8(*decoded)) return bad_args("does not decode to UTF-8");
    return std::move(*decoded);
}

}  // namespace luce::wire
