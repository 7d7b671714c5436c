// argmax, likeliest, likeliest_few and top_logprobs: see the header.
#include "llama/decoding/logit_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "llama/decoding/row_scan.h"

namespace luce::llama {
namespace {

struct PeakFloor {
    float peak = -std::numeric_limits<float>::infinity();

    bool is_open() const { return false; }
    float value() const { return peak; }
};

}  // namespace

Error no_finite_logits() {
    return {ErrorCode::internal, "the model computed no finite logits (broken weights or an overflow)"};
}

Result<Token> argmax(std::span<const float> logits) {
    PeakFloor floor;
    std::size_t first = 0;
    scan_above(logits, 0, logits.size(), floor, [&](std::size_t i, float logit) {
        floor.peak = logit;
        first = i;
    });
    if (!std::isfinite(floor.peak)) return no_finite_logits();
    return static_cast<Token>(first);
}

Likeliest likeliest(std::span<const float> logits) {
    const Result<Token> token = argmax(logits);
    if (!token) return {};
    const float peak = logits[static_cast<std::size_t>(token.value())];
    float sum = 0;
    for (const float logit : logits) {
        if (logit > peak - 16.0F) sum += std::exp(logit - peak);
    }
    return {token.value(), 1.0F / sum};
}

std::vector<speculation::Candidate> likeliest_few(std::span<const float> logits, std::size_t n) {
    const Result<Token> best = argmax(logits);
    if (!best || n == 0) return {};
    const float peak = logits[static_cast<std::size_t>(best.value())];
    float sum = 0;
    std::vector<speculation::Candidate> few;  // by their logits until all are seen
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (!(logits[i] > peak - 16.0F)) continue;
        sum += std::exp(logits[i] - peak);
        if (few.size() == n && logits[i] <= few.back().probability) continue;
        const auto place = std::find_if(few.begin(), few.end(), [&](const speculation::Candidate& candidate) {
            return candidate.probability < logits[i];
        });
        few.insert(place, {static_cast<Token>(i), logits[i]});
        if (few.size() > n) few.pop_back();
    }
    for (speculation::Candidate& candidate : few) candidate.probability = std::exp(candidate.probability - peak) / sum;
    return few;
}

std::vector<engine::TokenLogprob> top_logprobs(std::span<const float> logits, Token chosen, std::int32_t n) {
    if (logits.empty()) return {};
    const float peak = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - peak);
    const double log_sum = peak + std::log(sum);
    const auto logprob = [&](Token token) {
        return static_cast<float>(logits[static_cast<std::size_t>(token)] - log_sum);
    };
    const auto n_top = std::min(static_cast<std::size_t>(std::max(n, 0)), logits.size());
    std::vector<Token> order;  // all of the likeliest, and some others
    LargestFloor floor(n_top);
    if (n_top > 0) {
        scan_above(logits, 0, logits.size(), floor, [&](std::size_t i, float logit) {
            order.push_back(static_cast<Token>(i));
            floor.add(logit);
        });
    }
    const auto likelier = [&](Token a, Token b) {
        const float la = logits[static_cast<std::size_t>(a)];
        const float lb = logits[static_cast<std::size_t>(b)];
        return la != lb ? la > lb : a < b;
    };
    const std::size_t n_found = std::min(n_top, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_found), order.end(), likelier);
    std::vector<engine::TokenLogprob> entries = {{chosen, logprob(chosen)}};
    for (std::size_t i = 0; i < n_found; ++i) entries.push_back({order[i], logprob(order[i])});
    return entries;
}

}  // namespace luce::llama
