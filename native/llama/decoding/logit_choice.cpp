// argmax, likeliest, likeliest_few and top_logprobs: see the header.
#include "llama/decoding/logit_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace luce::llama {
namespace {

Error no_finite_logits() {
    return {ErrorCode::internal, "the model computed no finite logits (broken weights or an overflow)"};
}

// The largest of up to kBlock values; a NaN never is. Independent accumulators: the compiler makes vectors of them,
// which on a vocabulary of 250,000 saves a twentieth of a fast model's decode step.
constexpr std::size_t kBlock = 512;

float block_max(std::span<const float> block) {
    std::array<float, 16> peaks;
    peaks.fill(-std::numeric_limits<float>::infinity());
    std::size_t i = 0;
    for (; i + peaks.size() <= block.size(); i += peaks.size()) {
        for (std::size_t j = 0; j < peaks.size(); ++j) peaks[j] = block[i + j] > peaks[j] ? block[i + j] : peaks[j];
    }
    for (; i < block.size(); ++i) peaks[0] = block[i] > peaks[0] ? block[i] : peaks[0];
    return *std::max_element(peaks.begin(), peaks.end());
}

}  // namespace

Result<Token> argmax(std::span<const float> logits) {
    float peak = -std::numeric_limits<float>::infinity();
    std::size_t peak_block = 0;
    for (std::size_t first = 0; first < logits.size(); first += kBlock) {
        const float block_peak = block_max(logits.subspan(first, std::min(kBlock, logits.size() - first)));
        if (block_peak <= peak) continue;
        peak = block_peak;
        peak_block = first;
    }
    if (!std::isfinite(peak)) return no_finite_logits();
    const auto found = std::find(logits.begin() + static_cast<std::ptrdiff_t>(peak_block), logits.end(), peak);
    return static_cast<Token>(found - logits.begin());
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
    std::vector<Token> order(logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Token>(i);
    const auto n_top = std::min(static_cast<std::size_t>(n), order.size());
    const auto likelier = [&](Token a, Token b) {
        const float la = logits[static_cast<std::size_t>(a)];
        const float lb = logits[static_cast<std::size_t>(b)];
        return la != lb ? la > lb : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_top), order.end(), likelier);
    std::vector<engine::TokenLogprob> entries = {{chosen, logprob(chosen)}};
    for (std::size_t i = 0; i < n_top; ++i) entries.push_back({order[i], logprob(order[i])});
    return entries;
}

}  // namespace luce::llama
