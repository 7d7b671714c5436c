// ReadingLog: which parts were read of the texts of late, so that the next turn of a conversation goes on from them:
// what one turn left out, the next does not choose anew. Pure; knows no memory.
#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"

namespace luce::prefill {

class ReadingLog {
public:
    // The latest texts, up to so many tokens in all.
    explicit ReadingLog(std::size_t n_most_tokens) : n_most_tokens_(n_most_tokens) {}

    // `text`: a prompt of n_prompt tokens and its answer. `parts`: as joined() gives them; `share`: how much of the
    // prompt was to be read. Texts that this one goes on from are forgotten.
    void add(Tokens text, Position n_prompt, std::vector<PositionSpan> parts, double share);

    struct Found {
        Position n_common = 0;  // tokens that both begin with
        std::vector<PositionSpan> parts;
    };

    // The text that has most in common with this one, if this one goes on behind its prompt and no more than `share`
    // was to be read. Another question about the same text is none: for it other parts may matter.
    std::optional<Found> find(std::span<const Token> text, double share);

    void clear() { texts_.clear(); }
    std::size_t size() const { return texts_.size(); }

private:
    struct Text {
        Tokens tokens;
        Position n_prompt = 0;
        std::vector<PositionSpan> parts;
        double share = 0;
    };

    std::size_t n_most_tokens_;
    std::list<Text> texts_;  // the latest used first
};

}  // namespace luce::prefill
