// OutputText: see the header.
#include "llama/text/output_text.h"

#include <algorithm>

namespace luce::llama {

namespace {

constexpr std::string_view kVeils = "\xEF\xB7";  // U+FDD0 to U+FDEF, which are no characters
constexpr size_t kFirstVeil = 0x90;
constexpr size_t kMaxVeils = 32;

std::string veil_number(size_t n) { return std::string(kVeils) + static_cast<char>(kFirstVeil + n); }

size_t first_character(std::string_view text) {
    size_t n = 1;
    while (n < text.size() && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) {
        ++n;
    }
    return n;
}

}  // namespace

void Openers::add(const std::string& word) {
    trie_.insert(word);
    longest_ = std::max(longest_, word.size());
    add_veil(word);
}

bool Openers::is_at(std::string_view text, size_t at) const {
    return at < text.size() && trie_.check_at(text, at) == common_trie::COMPLETE_MATCH;
}

size_t Openers::find(std::string_view text, size_t from) const {
    for (size_t at = from; longest_ > 0 && at < text.size(); ++at) {
        if (trie_.check_at(text, at) == common_trie::COMPLETE_MATCH) {
            return at;
        }
    }
    return std::string_view::npos;
}

size_t Openers::find_begun(std::string_view text) const {
    for (size_t at = text.size() - std::min(text.size(), longest_); at < text.size(); ++at) {
        if (trie_.check_at(text, at) == common_trie::PARTIAL_MATCH) {
            return at;
        }
    }
    return text.size();
}

void Openers::add_veil(const std::string& word) {
    const std::string first = word.substr(0, first_character(word));
    if (std::ranges::find(first_, first) == first_.end() && first_.size() < kMaxVeils) {
        first_.push_back(first);
    }
    veiled_.push_back(veil_of(word) + word.substr(first.size()));
}

std::string Openers::veil_of(std::string_view text) const {
    const auto first = std::ranges::find(first_, text.substr(0, first_character(text)));
    return veil_number(static_cast<size_t>(first - first_.begin()));
}

std::string Openers::unveiled(std::string text) const {
    for (size_t at = text.find(kVeils); at != std::string::npos; at = text.find(kVeils, at + 1)) {
        const auto word = std::ranges::find_if(
            veiled_, [&](const std::string& word) { return text.compare(at, word.size(), word) == 0; });
        if (word != veiled_.end()) {
            const size_t n_veil = kVeils.size() + 1;
            const auto number = static_cast<unsigned char>(text[at + kVeils.size()]) - kFirstVeil;
            text.replace(at, n_veil, first_[number]);
        }
    }
    return text;
}

void OutputText::append(const common_chat_input& output) {
    (is_aside_ ? asides_.back().text : readable_).append(output);
}

void OutputText::replace_first(size_t at, const std::string& veil) {
    common_chat_input replaced = readable_.substr(0, at);
    replaced.append(common_chat_input(veil));
    replaced.append(readable_.substr(at + first_character(std::string_view(readable_.text).substr(at))));
    readable_ = std::move(replaced);
}

size_t OutputText::set_aside(size_t at) {
    if (asides_.empty() || asides_.back().at != at) {
        asides_.push_back({at, {}});
    }
    common_chat_input& text = asides_.back().text;
    const size_t begin = text.size();
    text.append(readable_.substr(at));
    readable_.truncate(at);
    is_aside_ = true;
    return begin;
}

void OutputText::take_back(size_t at) {
    common_chat_input& text = asides_.back().text;
    readable_.append(text.substr(at));
    text.truncate(at);
    is_aside_ = false;
}

}  // namespace luce::llama
