// Cutting by position only; must not know what a word means. Every reader moves forward, so a line is read once.
#include "wire/words.h"

#include <algorithm>

namespace luce::wire {

namespace {

constexpr std::string_view kBlanks = " \t";

}  // namespace

bool is_blank(std::string_view text) { return text.find_first_not_of(kBlanks) == std::string_view::npos; }

std::string_view trim(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

std::optional<std::string_view> WordReader::next() {
    const std::size_t begin = rest_.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) {
        rest_ = {};
        return std::nullopt;
    }
    const std::size_t end = std::min(rest_.find_first_of(kBlanks, begin), rest_.size());
    const std::string_view word = rest_.substr(begin, end - begin);
    rest_.remove_prefix(end);
    return word;
}

LastWord split_last_word(std::string_view text) {
    const std::size_t last = text.find_last_not_of(kBlanks);
    if (last == std::string_view::npos) return {};
    const std::string_view tight = text.substr(0, last + 1);
    const std::size_t blank = tight.find_last_of(kBlanks);
    if (blank == std::string_view::npos) return {{}, tight};
    const std::size_t head_end = tight.find_last_not_of(kBlanks, blank) + 1;  // npos + 1 is 0: nothing before it
    return {tight.substr(0, head_end), tight.substr(blank + 1)};
}

std::optional<std::string_view> ListReader::next() {
    if (done_) return std::nullopt;
    const std::size_t end = rest_.find(separator_);
    if (end == std::string_view::npos) {
        done_ = true;
        return rest_;
    }
    const std::string_view item = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return item;
}

}  // namespace luce::wire
