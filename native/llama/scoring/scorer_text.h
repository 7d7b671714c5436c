// ScorerText: a text of the target's in the tokens of a scorer, and where in the text each of them stands. Where both
// have the same vocabulary these are the same tokens, and places are counted in tokens. Otherwise the text is written
// out and tokenised anew, and places are counted in bytes: what a token of the scorer covers says which pages it is of.
// Knows vocabularies, no contexts and no keys.
//
// A text that grows is not tokenised from its start again. It is cut into segments, each tokenised alone, at places
// that follow from the bytes around them alone: behind a line's end, or where there is none for long, before a word.
// So the tokens of a text are the same however it has grown. What lies behind the last cut is tokenised provisionally.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

struct llama_vocab;

namespace luce::llama {

// Whose ids a text's tokens are, and those that the scorer reads. None: the ids mean the same to both.
struct TextVocabularies {
    const llama_vocab* target = nullptr;
    const llama_vocab* scorer = nullptr;
    bool are_equal() const { return target == nullptr; }
};

class ScorerText {
public:
    // The text is this one now. Its end is left out where it may still get other tokens, unless `is_whole`.
    void set(std::span<const Token> text, const TextVocabularies& vocabularies, bool is_whole);

    const Tokens& text() const { return text_; }      // as it was set
    const Tokens& tokens() const { return tokens_; }  // the scorer's

    // Where a token of the scorer's lies, and where the text's pages end.
    std::uint64_t begin_of(std::size_t token) const;
    std::uint64_t end_of(std::size_t token) const;
    std::uint64_t end_of_page(std::size_t page) const;

private:
    struct Segment {
        std::uint64_t begin = 0;   // bytes before it
        std::size_t n_tokens = 0;  // of the scorer before it
    };

    bool is_written_out() const { return !segments_.empty(); }
    void open(const TextVocabularies& vocabularies);
    void cut_back(std::size_t n_text, const llama_vocab* target);
    void write_out(std::span<const Token> text, const llama_vocab* target);
    void tokenise(std::string_view segment, const llama_vocab* scorer);
    std::uint64_t n_bytes_before_open() const { return segments_.back().begin; }

    Tokens text_;
    Tokens tokens_;
    // Of a text that is written out:
    std::vector<std::uint64_t> ends_;       // of the scorer's tokens
    std::vector<std::uint64_t> page_ends_;  // of the text's full pages
    std::vector<Segment> segments_;         // the last one is still open
    std::string open_;                      // its bytes
};

// How many bytes the first segment of a text has that begins like this; none: that is not certain yet.
std::optional<std::size_t> first_segment(std::string_view bytes);

}  // namespace luce::llama
