// ReadText: what a scorer has read of one text: its tokens, and the keys that they got, page by page of the target's.
// Bookkeeping only: it must not know where keys come from, nor what they are compared with.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"
#include "llama/scoring/key_index.h"
#include "llama/scoring/scorer_text.h"
#include "memory/residency/page_scorer.h"

namespace luce::llama {

class ReadText {
public:
    // What the text is now, and the tokens that it consists of for the scorer.
    ScorerText& text() { return text_; }
    const ScorerText& text() const { return text_; }

    // So many of the text's tokens have been read; those that are others now are forgotten.
    std::size_t n_read() const { return read_.size(); }
    void forget_others();

    // Read only so many, or somewhat fewer: a page whose keys were put away is read anew from its start.
    void go_back(std::size_t n);

    // The text's next tokens have been read: what is compared of their keys, token by token.
    void add(std::span<const float> keys, const KeyIndex& index);

    // Keys of the pages that have been read, one page's behind the other's.
    struct Keys {
        std::vector<memory::PageKeys> blocks;
        std::vector<std::size_t> ends;  // of each page
    };
    Keys first_pages(std::size_t n) const;

    std::size_t n_bytes() const;  // keys and tokens

    std::optional<std::int32_t> sequence;  // of the scorer's, whose cells end with what was read
    std::uint64_t used_at = 0;
    bool has_lane = false;

private:
    struct Page {
        std::size_t first = 0;  // of the tokens that reach into it
        std::size_t end = 0;
        std::vector<memory::PageKeys> blocks;
    };

    bool seal_next(const KeyIndex& index);

    ScorerText text_;
    Tokens read_;
    std::vector<Page> pages_;
    std::size_t first_open_ = 0;    // of the tokens whose keys may still be of a page
    std::vector<float> open_keys_;  // from there on
    std::size_t key_size_ = 0;      // of one token
};

}  // namespace luce::llama
