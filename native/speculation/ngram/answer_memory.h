// AnswerMemory: the latest answers as one text with its ngrams, so that another answer can be drafted from them. Knows
// neither lanes nor what a match is worth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/token.h"
#include "speculation/ngram/ngram_index.h"

namespace luce::speculation {

class AnswerMemory {
public:
    // Ends each answer in the text: no token is like it.
    static constexpr Token kEnd = -1;

    // REQUIRES: both >= 1. The last n_long tokens of a prompt are kept before its answer.
    AnswerMemory(std::size_t n_short, std::size_t n_long);

    // What comes after n_prompt tokens of the text is an answer. The oldest are forgotten: about kMost tokens are kept.
    void add(std::span<const Token> text, std::int32_t n_prompt);

    std::span<const Token> text() const { return text_; }
    const NgramIndex& shorter() const { return shorter_; }
    const NgramIndex& longer() const { return longer_; }

private:
    static constexpr std::size_t kMost = 1U << 14U;

    std::size_t n_short_;
    std::size_t n_long_;
    Tokens text_;
    NgramIndex shorter_;
    NgramIndex longer_;
};

}  // namespace luce::speculation
