// NgramIndex: where the last n tokens of a growing text stood before in it. Pure; holds places, not tokens: whoever
// asks has the text, and compares, because different ngrams may share a chain.
//
// A ngram is known by the place where it ends: the number of tokens before its end. Places with the same hash are
// linked from the latest to the earliest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/token.h"

namespace luce::speculation {

// 0: no place, because no ngram ends before the first token.
using Place = std::uint32_t;

class NgramIndex {
public:
    // REQUIRES: n_gram >= 1
    explicit NgramIndex(std::size_t n_gram);

    // Makes the places up to `n` known, amortised O(1) each. REQUIRES: text begins with what was given before;
    // n <= text.size() < 2^32
    void extend(std::span<const Token> text, std::size_t n);

    // The latest place, known and before the text's end, that may end like the text.
    Place latest(std::span<const Token> text) const;
    // The same where the text is another one than the index is of.
    Place latest_like(std::span<const Token> other) const;
    // The one before it. REQUIRES: the place came from this index
    Place before(Place place) const { return links_[place]; }

    std::size_t n_known() const { return links_.empty() ? 0 : links_.size() - 1; }

    // 4 for each known place and 2 to 3 for each token of the text.
    std::size_t n_bytes() const { return (links_.size() + heads_.size()) * sizeof(Place); }

private:
    std::uint64_t hash_of(std::span<const Token> text, std::size_t place) const;
    std::uint64_t next_hash(std::span<const Token> text, std::size_t place, std::uint64_t hash) const;
    std::size_t bucket_of(std::uint64_t hash) const;
    void add(std::span<const Token> text, std::size_t begin, std::size_t end);
    void rebuild(std::span<const Token> text);

    std::size_t ngram_size_;
    std::uint64_t leaving_ = 1;  // what a token is multiplied with where it leaves a ngram
    std::deque<Place> links_;    // of each place; grows without moving, so that it never takes twice its size
    std::vector<Place> heads_;   // the latest place of each bucket
};

}  // namespace luce::speculation
