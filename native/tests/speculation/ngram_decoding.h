// What the tests of n-gram drafts share: texts, asking for a draft, and decoding with all that is proposed.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "speculation/ngram/ngram_lookup.h"

namespace luce::tests::ngram {

using namespace luce::speculation;

inline constexpr auto kLane = static_cast<LaneId>(0);
inline constexpr std::int32_t kMost = 15;

inline std::int32_t size_of(std::span<const Token> text) { return static_cast<std::int32_t>(text.size()); }

inline Draft draft_of(NgramLookup& lookup, std::span<const Token> text, LaneId lane = kLane,
                      std::int32_t n_most = kMost) {
    const DraftAsk ask{lane, text, n_most};
    std::vector<Draft> drafts;
    REQUIRE(lookup.draft(std::span(&ask, 1), drafts));
    REQUIRE(drafts.size() == 1);
    CHECK(drafts[0].lane == lane);
    CHECK(drafts[0].tokens.size() == drafts[0].confidence.size());
    return drafts[0];
}

inline Tokens count_up(Token first, int n) {
    Tokens tokens(static_cast<std::size_t>(n));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
}

inline void append(Tokens& text, std::span<const Token> more) { text.insert(text.end(), more.begin(), more.end()); }

// Random tokens in which passages come again, some of them with a token changed.
inline Tokens random_text(std::mt19937& random, std::size_t n, Token n_vocab) {
    Tokens text;
    while (text.size() < n) {
        if (text.size() < 4 || random() % 3 == 0) {
            text.push_back(static_cast<Token>(random()) % n_vocab);
            continue;
        }
        const std::size_t from = random() % text.size();
        const std::size_t n_copied = 1 + random() % std::min<std::size_t>(40, text.size() - from);
        for (std::size_t i = 0; i < n_copied; ++i) text.push_back(text[from + i]);
        if (random() % 4 == 0) text.back() = static_cast<Token>(random()) % n_vocab;
    }
    text.resize(n);
    return text;
}

// Decodes `answer` after `prompt` as an engine does, all that is proposed being verified.
struct Decoding {
    std::size_t n_steps = 0;
    std::size_t n_drafts = 0;
    std::size_t n_judged = 0;  // drafted tokens whose predecessors were right
    std::size_t n_hits = 0;
    double sum_of_confidence = 0.0;  // of those judged

    void run(NgramLookup& lookup, Tokens text, std::span<const Token> answer, LaneId lane = kLane) {
        lookup.begin(lane, text, 0);
        lookup.follow(lane, text, size_of(text), size_of(text), 0);
        while (!answer.empty()) {
            const Draft draft = draft_of(lookup, text, lane);
            std::size_t n_right = 0;
            while (n_right < draft.tokens.size() && n_right < answer.size() && draft.tokens[n_right] == answer[n_right])
                ++n_right;
            const std::size_t n_known = std::min({n_right + 1, draft.tokens.size(), answer.size()});
            for (std::size_t i = 0; i < n_known; ++i) sum_of_confidence += static_cast<double>(draft.confidence[i]);
            n_judged += n_known;
            n_hits += n_right;
            n_drafts += draft.tokens.empty() ? 0 : 1;
            ++n_steps;
            const std::size_t n_new = std::min(n_right + 1, answer.size());
            append(text, answer.first(n_new));
            answer = answer.subspan(n_new);
            lookup.follow(lane, text, size_of(text) - 1, static_cast<std::int32_t>(n_new), 0);
        }
    }
};

}  // namespace luce::tests::ngram
