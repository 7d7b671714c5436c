// Candidates: the entries of a row of logits that a sampler chain can still choose, without a table of the vocabulary.
// What it leaves out is what the chain's first cut would, so the chain picks from the rest as it would from all of
// them: the same token for the same seed, equal logits included. Knows llama.cpp's cuts and no sampling state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <llama.h>

#include "base/result.h"
#include "base/token.h"

namespace luce::llama {

// The first link of a chain that leaves tokens out by their logits. Only what changes single tokens may come before it
// (penalties, biases).
struct FirstCut {
    enum class Kind {
        none,     // the whole vocabulary is wanted
        largest,  // greedy: only the largest logit, the first of equal ones
        top_k,
        min_p,
        top_p,  // nothing may come before it: it cuts by the probabilities of the whole vocabulary
    };
    Kind kind = Kind::none;
    std::int32_t top_k = 0;
    float min_p = 0;
    float top_p = 1;
};

class Candidates {
public:
    // From a row of logits, in the order of their ids unless is_cut(); never a NaN, unless the whole vocabulary is
    // taken. `touched` are taken in any case: tokens whose logits the chain changes before it cuts. REQUIRES: touched
    // ascend, each once; none for top_p. Errors: internal (no logit is finite).
    Result<void> take(std::span<const float> logits, const FirstCut& cut, std::span<const Token> touched);

    // The whole vocabulary, NaNs included. Valid until the next take().
    llama_token_data_array& take_all(std::span<const float> logits);

    // For a chain to be applied to; it may change them. Valid until the next take().
    llama_token_data_array& array() { return array_; }

    // They are what the chain's first link, top_p, would leave: the next link's turn.
    bool is_cut() const { return is_cut_; }

private:
    bool take_top_p(std::span<const float> logits, float peak, float top_p);

    std::vector<llama_token_data> tokens_;
    llama_token_data_array array_{};
    bool is_cut_ = false;
};

}  // namespace luce::llama
