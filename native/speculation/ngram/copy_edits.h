// CopyEdits: what a text changes of a passage that it copies. A renamed variable is renamed at each place: an edit that
// was made before is expected again where the same tokens stand. Pure; knows places in the text, no drafts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"

namespace luce::speculation {

// These tokens of the passage became those of the copy.
struct CopyEdit {
    Tokens before;  // at least one
    Tokens after;   // none: left out
    std::int32_t n_made = 0;
    std::int32_t n_not_made = 0;  // the copy kept `before`
};

class CopyEdits {
public:
    // The end of text[.. n_text) was copied from before `place`, and its whole end now from before `place_now`: learns
    // what was changed between the two. REQUIRES: place <= n_text <= text.size(), place_now < text.size()
    void learn(std::span<const Token> text, std::size_t n_text, std::size_t place, std::size_t place_now);

    // The edit to expect where a copy reaches this place; null: none.
    const CopyEdit* expected(std::span<const Token> text, std::size_t place) const;

private:
    static constexpr std::size_t kMostTokens = 12;  // of an edit, before as after: more is no edit but another text
    static constexpr std::size_t kMostEdits = 32;

    CopyEdit* known_at(std::span<const Token> text, std::size_t place);
    void add(std::span<const Token> before, std::span<const Token> after);

    std::vector<CopyEdit> edits_;  // latest last
};

}  // namespace luce::speculation
