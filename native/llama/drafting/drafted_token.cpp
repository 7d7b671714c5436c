#include "llama/drafting/drafted_token.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "llama/decoding/logit_choice.h"

namespace luce::llama {
namespace {

using speculation::Distribution;
using speculation::DrawRule;
using speculation::TokenProbability;

// Likeliest first, with logits in the place of probabilities. The worst of the best is looked at for every token and
// seldom beaten.
Distribution best_logits(std::span<const float> logits, std::size_t n_most) {
    const auto is_better = [](const TokenProbability& a, const TokenProbability& b) {
        return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
    };
    Distribution best;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const float logit = logits[i];
        if (!std::isfinite(logit) || (best.size() == n_most && logit <= best.front().probability)) continue;
        if (best.size() == n_most) {
            std::pop_heap(best.begin(), best.end(), is_better);
            best.pop_back();
        }
        best.push_back({static_cast<Token>(i), logit});
        std::push_heap(best.begin(), best.end(), is_better);
    }
    std::sort_heap(best.begin(), best.end(), is_better);
    return best;
}

void make_probabilities(Distribution& logits, float temperature) {
    const float peak = logits.front().probability;
    float sum = 0;
    for (TokenProbability& entry : logits)
        sum += entry.probability = std::exp((entry.probability - peak) / temperature);
    for (TokenProbability& entry : logits) entry.probability /= sum;
}

// How many of the likeliest the request's cut-offs leave, which look at probabilities at temperature 1.
std::size_t n_left(Distribution logits, const DrawRule& rule) {
    make_probabilities(logits, 1.0F);
    float sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (logits[i].probability < rule.min_p * logits.front().probability) return i;
        sum += logits[i].probability;
        if (sum >= rule.top_p) return i + 1;
    }
    return logits.size();
}

}  // namespace

Distribution drawn_from(std::span<const float> logits, const DrawRule& rule) {
    const std::size_t n_most =
        rule.top_k > 0 ? std::min(kMostCandidates, static_cast<std::size_t>(rule.top_k)) : kMostCandidates;
    Distribution best = best_logits(logits, n_most);
    if (best.empty()) return best;
    best.resize(std::max<std::size_t>(1, n_left(best, rule)));
    make_probabilities(best, kDraftTemperature * rule.temperature);
    return best;
}

bool add_token(std::span<const float> logits, const speculation::DraftAsk& ask, speculation::Draft& draft) {
    if (!ask.draw) {
        const Likeliest best = likeliest(logits);
        if (best.probability <= 0.0F) return false;
        draft.tokens.push_back(best.token);
        draft.confidence.push_back(best.probability);
        return true;
    }
    Distribution distribution = drawn_from(logits, *ask.draw);
    if (distribution.empty()) return false;
    const std::uint64_t index = ask.draw->index + draft.tokens.size();
    draft.tokens.push_back(
        speculation::draw_from(distribution, speculation::uniform_at(ask.draw->seed, index, speculation::Draw::draft)));
    draft.confidence.push_back(distribution.front().probability);
    draft.drawn_from.push_back(std::move(distribution));
    return true;
}

}  // namespace luce::llama
