#include "speculation/rejection.h"

#include <algorithm>
#include <cassert>

namespace luce::speculation {
namespace {

// SplitMix64's finaliser (Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15ULL;

double probability_in(std::span<const TokenProbability> distribution, Token token) {
    const auto found = std::find_if(distribution.begin(), distribution.end(),
                                    [&](const TokenProbability& entry) { return entry.token == token; });
    return found == distribution.end() ? 0.0 : static_cast<double>(found->probability);
}

// What p has more than q; q is short and p may be a whole vocabulary.
Distribution residual(std::span<const TokenProbability> p, std::span<const TokenProbability> q) {
    Distribution subtracted(q.begin(), q.end());
    const auto is_earlier = [](const TokenProbability& entry, Token token) { return entry.token < token; };
    std::sort(subtracted.begin(), subtracted.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
    Distribution left;
    left.reserve(p.size());
    for (const TokenProbability& entry : p) {
        const auto found = std::lower_bound(subtracted.begin(), subtracted.end(), entry.token, is_earlier);
        const bool is_drafted = found != subtracted.end() && found->token == entry.token;
        const float more = is_drafted ? entry.probability - found->probability : entry.probability;
        if (more > 0.0F) left.push_back({entry.token, more});
    }
    return left;
}

}  // namespace

double uniform_at(std::uint64_t seed, std::uint64_t index, Draw draw) {
    const std::uint64_t stream = mixed(seed + kStride * (static_cast<std::uint64_t>(draw) + 1));
    return static_cast<double>(mixed(stream + kStride * (index + 1)) >> 11) * 0x1p-53;
}

Token draw_from(std::span<const TokenProbability> distribution, double uniform) {
    assert(!distribution.empty());
    double whole = 0;
    for (const TokenProbability& entry : distribution) whole += static_cast<double>(entry.probability);
    const double place = uniform * whole;
    double passed = 0;
    Token last = distribution.front().token;
    for (const TokenProbability& entry : distribution) {
        if (entry.probability <= 0.0F) continue;
        passed += static_cast<double>(entry.probability);
        last = entry.token;
        if (passed > place) return last;
    }
    return last;
}

Token keep_or_replace(std::span<const TokenProbability> p, const DrawnToken& drafted, double keep, double replace) {
    const double of_target = probability_in(p, drafted.token);
    const double of_draft = probability_in(drafted.from, drafted.token);
    if (keep * of_draft < of_target) return drafted.token;
    const Distribution left = residual(p, drafted.from);
    // Where p has nothing more than q the two are equal but for rounding, and the token was refused by that alone.
    return left.empty() ? drafted.token : draw_from(left, replace);
}

}  // namespace luce::speculation
