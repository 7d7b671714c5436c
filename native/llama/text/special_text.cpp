// SpecialText: see the header. The cut follows llama_vocab::impl::tokenizer_st_partition, which is private there; a
// test compares both on random texts.
#include "llama/text/special_text.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <iterator>
#include <map>

namespace luce::llama {

namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

// A user-defined token that can be a frame's tag, such as <think> or [ARGS], and not a word, a number or white space.
bool looks_like_tag(std::string_view text) {
    const auto is_punctuation = [](char c) { return std::ispunct(static_cast<unsigned char>(c)) != 0; };
    const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) || (c & 0x80); };
    return text.size() >= 3 && is_punctuation(text.front()) && is_punctuation(text.back()) &&
           std::any_of(text.begin(), text.end(), is_letter);
}

// Frame tags whatever the template: what such a token means to a model does not depend on its template naming it.
bool is_known_tag(std::string_view text) {
    constexpr std::string_view kKnown[] = {"<think>",         "</think>",        "[THINK]",      "[/THINK]",
                                           "<tool_call>",     "</tool_call>",    "[TOOL_CALLS]", "[ARGS]",
                                           "<tool_response>", "</tool_response>"};
    const bool has_bars = text.size() > 4 && text.substr(0, 2) == "<|" && text.substr(text.size() - 2) == "|>";
    return has_bars || std::find(std::begin(kKnown), std::end(kKnown), text) != std::end(kKnown);
}

bool all_space(std::string_view text) { return std::all_of(text.begin(), text.end(), is_space); }

uint64_t next_serial() {
    static std::atomic<uint64_t> last = 0;
    return ++last;
}

// The raw stretches that are left, by their first byte.
class RawText {
public:
    explicit RawText(size_t size) {
        if (size > 0) {
            ends_[0] = size;
        }
    }

    // The raw stretch around [begin, end), or ends_.end().
    std::map<size_t, size_t>::iterator find(size_t begin, size_t end) {
        auto it = ends_.upper_bound(begin);
        if (it == ends_.begin()) {
            return ends_.end();
        }
        --it;
        return it->second >= end ? it : ends_.end();
    }

    // REQUIRES: stretch was found; left_end and right_begin lie in it.
    void take(std::map<size_t, size_t>::iterator stretch, size_t left_end, size_t right_begin) {
        const size_t begin = stretch->first;
        const size_t end = stretch->second;
        ends_.erase(stretch);
        if (left_end > begin) {
            ends_[begin] = left_end;
        }
        if (right_begin < end) {
            ends_[right_begin] = end;
        }
    }

    std::map<size_t, size_t>::iterator none() { return ends_.end(); }
    const std::map<size_t, size_t>& stretches() const { return ends_; }

private:
    std::map<size_t, size_t> ends_;
};

// Spans are in order and do not overlap.
bool touches(const std::vector<ByteSpan>& spans, size_t begin, size_t end) {
    auto it = std::lower_bound(spans.begin(), spans.end(), begin,
                               [](const ByteSpan& span, size_t value) { return span.end < value; });
    for (; it != spans.end() && it->begin < end; ++it) {
        const bool place_inside = it->begin == it->end && it->begin > begin;
        if (place_inside || (it->end > begin && it->begin != it->end)) {
            return true;
        }
    }
    return false;
}

}  // namespace

SpecialText::SpecialText(const Vocabulary& vocabulary, const std::vector<std::string>& frame) : serial_(next_serial()) {
    const llama_vocab* vocab = vocabulary.text();
    constexpr uint32_t kControl = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
    for (llama_token id = 0; id < vocabulary.n_tokens(); ++id) {
        const auto attr = static_cast<uint32_t>(llama_vocab_get_attr(vocab, id));
        const std::string text = llama_vocab_get_text(vocab, id);
        if (text.empty() || !(attr & (kControl | LLAMA_TOKEN_ATTR_USER_DEFINED))) {
            continue;
        }
        const auto has_tag = [&](const std::string& part) { return part.find(text) != std::string::npos; };
        const bool in_frame =
            is_known_tag(text) || (looks_like_tag(text) && std::any_of(frame.begin(), frame.end(), has_tag));
        entries_.push_back({id, text, ((attr & kControl) != 0 && !all_space(text)) || in_frame, (attr & kControl) == 0,
                            (attr & LLAMA_TOKEN_ATTR_LSTRIP) != 0, (attr & LLAMA_TOKEN_ATTR_RSTRIP) != 0});
    }
    // The same sort on the same sequence as in llama_vocab, so that spellings of one length come in its order.
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.text.size() > b.text.size(); });
    for (size_t rank = 0; rank < entries_.size(); ++rank) {
        by_first_byte_[static_cast<unsigned char>(entries_[rank].text[0])].push_back(rank);
        begins_[static_cast<unsigned char>(entries_[rank].text[0])] = true;
    }
    for (const Entry& entry : entries_) {
        for (size_t n = 1; entry.structural && n < entry.text.size(); ++n) {
            prefix_matches_.insert(entry.text.substr(0, n));
            rests_.insert(entry.text.substr(n));
            longest_ = std::max(longest_, entry.text.size());
        }
    }
}

template <typename Wanted>
std::vector<SpecialText::Candidate> SpecialText::candidates(std::string_view text, Wanted wanted) const {
    std::vector<Candidate> found;
    for (size_t i = 0; i < text.size(); ++i) {
        while (i < text.size() && !begins_[static_cast<unsigned char>(text[i])]) ++i;
        if (i == text.size()) break;
        for (const size_t rank : by_first_byte_[static_cast<unsigned char>(text[i])]) {
            const Entry& entry = entries_[rank];
            if (wanted(entry) && text.compare(i, entry.text.size(), entry.text) == 0) {
                found.push_back({rank, i});
            }
        }
    }
    std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
        return a.rank != b.rank ? a.rank < b.rank : a.begin < b.begin;
    });
    return found;
}

std::vector<Fragment> SpecialText::cut(std::string_view text, const std::vector<ByteSpan>& kept_as_text) const {
    RawText raw(text.size());
    std::vector<Fragment> fragments;
    for (const Candidate& candidate : candidates(text, [](const Entry&) { return true; })) {
        const Entry& entry = entries_[candidate.rank];
        const size_t begin = candidate.begin;
        const size_t end = begin + entry.text.size();
        const auto stretch = raw.find(begin, end);
        if (stretch == raw.none() || (entry.structural && touches(kept_as_text, begin, end))) {
            continue;
        }
        size_t left_end = begin;
        size_t right_begin = end;
        while (entry.strip_left && left_end > stretch->first && is_space(text[left_end - 1])) {
            --left_end;
        }
        while (entry.strip_right && right_begin < stretch->second && is_space(text[right_begin])) {
            ++right_begin;
        }
        raw.take(stretch, left_end, right_begin);
        fragments.push_back({begin, end, entry.id});
    }
    for (const auto& [begin, end] : raw.stretches()) {
        fragments.push_back({begin, end, LLAMA_TOKEN_NULL});
    }
    std::sort(fragments.begin(), fragments.end(),
              [](const Fragment& a, const Fragment& b) { return a.begin < b.begin; });
    return fragments;
}

template <typename Wanted>
std::vector<ByteSpan> SpecialText::spans(std::string_view text, Wanted wanted) const {
    RawText raw(text.size());
    std::vector<ByteSpan> found;
    for (const Candidate& candidate : candidates(text, wanted)) {
        const size_t end = candidate.begin + entries_[candidate.rank].text.size();
        const auto stretch = raw.find(candidate.begin, end);
        if (stretch != raw.none()) {
            raw.take(stretch, candidate.begin, end);
            found.push_back({candidate.begin, end});
        }
    }
    std::sort(found.begin(), found.end(), [](const ByteSpan& a, const ByteSpan& b) { return a.begin < b.begin; });
    return found;
}

std::vector<ByteSpan> SpecialText::structural_in(std::string_view text) const {
    return spans(text, [](const Entry& entry) { return entry.structural; });
}

std::vector<ByteSpan> SpecialText::user_defined_frame_in(std::string_view text) const {
    return spans(text, [](const Entry& entry) { return entry.structural && entry.user_defined; });
}

bool SpecialText::ends_open(std::string_view text) const {
    while (!text.empty() && is_space(text.back())) {
        text.remove_suffix(1);
    }
    for (size_t n = 1; n < longest_ && n <= text.size(); ++n) {
        if (prefix_matches_.count(std::string(text.substr(text.size() - n))) > 0) {
            return true;
        }
    }
    return false;
}

bool SpecialText::begins_open(std::string_view text) const {
    while (!text.empty() && is_space(text.front())) {
        text.remove_prefix(1);
    }
    for (size_t n = 1; n < longest_ && n <= text.size(); ++n) {
        if (rests_.count(std::string(text.substr(0, n))) > 0) {
            return true;
        }
    }
    return false;
}

llama_token SpecialText::leading_structural(std::string_view text) const {
    for (const Entry& entry : entries_) {
        if (entry.structural && text.substr(0, entry.text.size()) == entry.text) {
            return entry.id;
        }
    }
    return LLAMA_TOKEN_NULL;
}

}  // namespace luce::llama
