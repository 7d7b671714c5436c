// find_elisions: see the header.
#include "llama/text/elision.h"

#include <algorithm>
#include <array>
#include <utility>

namespace luce::llama {

namespace {

// Of a text: what is read as empty or as spaces only may be read otherwise, and at the end of an open one there may be
// something that is not shown yet.
constexpr size_t kHeadBytes = 16;
constexpr size_t kCheckpointBytes = 16;
constexpr size_t kOpenCheckpointBytes = 160;
constexpr size_t kLeastBytes = 64;
constexpr std::string_view kSpaces = " \t\r\n\v\f";

// Where a text is cut, something may seem to begin that ends it: then it is cut a little later. And where the text is
// JSON to the message but not to the grammar, both ends of the cut have to lie in the same string: then it is cut
// short.
constexpr size_t kCuts = 4;
constexpr std::array<size_t, 3> kShortCuts = {2048, 768, 256};
constexpr size_t kTries = 24;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::vector<Stretch> cuts_of(std::string_view input, const Stretch& text, size_t n_checkpoint) {
    const size_t head = input.find_first_not_of(kSpaces, text.begin);
    const size_t checkpoint = input.find_last_not_of(kSpaces, text.end - 1);
    if (head == std::string_view::npos || head >= checkpoint || text.end < text.begin + n_checkpoint) {
        return {};
    }
    size_t end = std::min(checkpoint, text.end - n_checkpoint);
    while (end > head && is_continuation(input[end])) {
        --end;
    }
    std::vector<Stretch> cuts;
    const auto add = [&](size_t begin, size_t n_cuts) {
        for (; begin + kLeastBytes <= end && n_cuts > 0; ++begin) {
            if (!is_continuation(input[begin])) {
                cuts.push_back({begin, end});
                --n_cuts;
            }
        }
    };
    add(head + kHeadBytes, kCuts);
    for (const size_t n_bytes : kShortCuts) {
        if (head + kHeadBytes + n_bytes + kCuts < end) {
            add(end - n_bytes - kCuts, 2);
        }
    }
    return cuts;
}

}  // namespace

std::vector<Stretch> find_elisions(const AnswerPlace& place, std::string_view input, size_t n_fixed) {
    std::vector<std::vector<Stretch>> choices;
    for (const Stretch& stretch : place.repeated) {
        choices.push_back({{std::max(stretch.begin, n_fixed), stretch.end}});
    }
    for (const Stretch& text : place.texts) {
        choices.push_back(cuts_of(input, {std::max(text.begin, n_fixed), text.end}, kCheckpointBytes));
    }
    if (place.open) {
        const size_t begin = std::max({place.open->begin, place.open->looked_to, n_fixed});
        choices.push_back(cuts_of(input, {begin, input.size()}, kOpenCheckpointBytes));
    }
    std::erase_if(choices, [](const auto& cuts) { return cuts.empty() || cuts[0].end < cuts[0].begin + kLeastBytes; });
    // The longest first, each of them once: a grammar may read the same text in several ways before it finds the right.
    std::sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) {
        return std::pair(a[0].end - a[0].begin, a[0].end) > std::pair(b[0].end - b[0].begin, b[0].end);
    });
    std::vector<Stretch> stretches;
    for (size_t i = 0; i < choices.size() && stretches.size() < kTries; ++i) {
        if (i == 0 || choices[i][0].end != choices[i - 1][0].end || choices[i][0].begin != choices[i - 1][0].begin) {
            stretches.insert(stretches.end(), choices[i].begin(), choices[i].end());
        }
    }
    return stretches;
}

}  // namespace luce::llama
