// SpecialText: where the spellings of special tokens stand in a text, and llama.cpp's rule for cutting a text at them.
// Two kinds: *structural* spellings make a prompt's frame (control tokens, and the user-defined ones that the chat
// template uses or that are known as tags of reasoning and tools), so a message must not be able to write them; all
// others are ordinary entries of the vocabulary that are always recognised (runs of spaces and the like). Knows
// nothing of templates or messages. Immutable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "llama/text/vocabulary.h"

namespace luce::llama {

// Bytes [begin, end) of a text; begin == end is a place between two bytes.
struct ByteSpan {
    size_t begin = 0;
    size_t end = 0;
};

// A stretch of text after the cut: a special token, or (id < 0) raw text.
struct Fragment {
    size_t begin = 0;
    size_t end = 0;
    llama_token id = LLAMA_TOKEN_NULL;

    bool is_token() const { return id != LLAMA_TOKEN_NULL; }
};

class SpecialText {
public:
    // frame: texts in which a user-defined token counts as part of the prompt's frame (the template's source, its
    // thinking and tool tags).
    SpecialText(const Vocabulary& vocabulary, const std::vector<std::string>& frame);

    // The text cut at special tokens as llama_tokenize(parse_special = true) does it: longest spelling first, with the
    // tokens' strip attributes. A structural match that touches a byte of kept_as_text, or encloses a place in it, is
    // left alone. In order, without gaps other than stripped white space.
    std::vector<Fragment> cut(std::string_view text, const std::vector<ByteSpan>& kept_as_text) const;

    // Structural spellings in a text, longest first, without overlaps, in order.
    std::vector<ByteSpan> structural_in(std::string_view text) const;
    // The same for the user-defined ones among them, which llama_tokenize recognises whatever it is told.
    std::vector<ByteSpan> user_defined_frame_in(std::string_view text) const;

    // Whether a text, its white space at that end aside, could complete a structural spelling with what stands beside
    // it. ends_open: it ends in the start of one. begins_open: it begins with the rest of one.
    bool ends_open(std::string_view text) const;
    bool begins_open(std::string_view text) const;

    // No other has the same.
    uint64_t serial() const { return serial_; }

    // The longest structural token whose spelling the text begins with.
    llama_token leading_structural(std::string_view text) const;

private:
    struct Entry {
        llama_token id;
        std::string text;
        bool structural;
        bool user_defined;
        bool strip_left;
        bool strip_right;
    };
    struct Candidate {
        size_t rank;  // index into entries_: longest first
        size_t begin;
    };

    template <typename Wanted>
    std::vector<Candidate> candidates(std::string_view text, Wanted wanted) const;

    template <typename Wanted>
    std::vector<ByteSpan> spans(std::string_view text, Wanted wanted) const;

    const uint64_t serial_;
    std::vector<Entry> entries_;                          // in llama.cpp's own order
    std::array<std::vector<size_t>, 256> by_first_byte_;  // ranks
    std::array<bool, 256> begins_{};                      // whether there are any: all of each prompt is looked through
    std::unordered_set<std::string> prefix_matches_;      // proper prefixes of structural spellings
    std::unordered_set<std::string> rests_;               // proper suffixes
    size_t longest_ = 0;                                  // structural spelling, in bytes
};

}  // namespace luce::llama
