#include "memory/residency/residency.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "memory/tiers/blob.h"

namespace luce::memory {
namespace {

constexpr float kUnknown = -std::numeric_limits<float>::infinity();

float score_of(const PageView& page) { return page.score.value_or(kUnknown); }

}  // namespace

bool has_to_stay(std::span<const PageView> pages, std::size_t index, const ResidencyRules& rules) {
    return index < rules.n_sinks || index + rules.n_recent >= pages.size() || pages[index].is_pinned;
}

std::vector<bool> choose_pages(std::span<const PageView> pages, std::size_t n_most, const ResidencyRules& rules) {
    std::vector<bool> chosen(pages.size());
    std::size_t n_chosen = 0;
    const auto choose = [&](std::size_t i) {
        if (!chosen[i]) ++n_chosen;
        chosen[i] = true;
    };
    for (std::size_t i = 0; i < pages.size(); ++i) {
        if (has_to_stay(pages, i, rules)) choose(i);
    }
    const std::size_t n_newest = n_chosen + (n_most > n_chosen ? (n_most - n_chosen) / 2 : 0);
    for (std::size_t i = pages.size(); i-- > 0 && n_chosen < n_newest;) choose(i);
    std::vector<std::size_t> rest;
    for (std::size_t i = 0; i < pages.size(); ++i) {
        if (!chosen[i]) rest.push_back(i);
    }
    const auto is_better = [&](std::size_t a, std::size_t b) {
        return std::tuple(score_of(pages[a]), a) > std::tuple(score_of(pages[b]), b);
    };
    const std::size_t n_best = std::min(rest.size(), n_most > n_chosen ? n_most - n_chosen : 0);
    std::partial_sort(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(n_best), rest.end(), is_better);
    for (std::size_t i = 0; i < n_best; ++i) choose(rest[i]);
    return chosen;
}

std::vector<PageMove> plan_moves(std::span<const PageView> pages, const std::vector<bool>& chosen, std::size_t n_most) {
    std::vector<std::size_t> coming;
    std::vector<std::size_t> going;
    for (std::size_t i = 0; i < pages.size(); ++i) {
        if (chosen[i] && !pages[i].is_seen) coming.push_back(i);
        if (!chosen[i] && pages[i].is_seen) going.push_back(i);
    }
    const auto matters_less = [&](std::size_t a, std::size_t b) { return score_of(pages[a]) < score_of(pages[b]); };
    std::stable_sort(going.begin(), going.end(), matters_less);
    std::stable_sort(coming.begin(), coming.end(), [&](std::size_t a, std::size_t b) { return matters_less(b, a); });
    const std::size_t n = std::min(coming.size(), n_most);
    // Where fewer go than come there is room already, and it is used first.
    const std::size_t n_beside = std::min(n, coming.size() - std::min(coming.size(), going.size()));
    std::vector<PageMove> moves(n);
    for (std::size_t i = 0; i < n; ++i) {
        moves[i].in = coming[i];
        if (i >= n_beside) moves[i].out = going[i - n_beside];
    }
    return moves;
}

std::optional<std::size_t> first_to_go(std::span<const PageView> pages, const ResidencyRules& rules) {
    const auto n_seen = static_cast<std::size_t>(
        std::count_if(pages.begin(), pages.end(), [](const PageView& page) { return page.is_seen; }));
    std::optional<std::size_t> first;
    std::size_t n_newer = n_seen;  // seen pages from here on
    for (std::size_t i = 0; i < pages.size(); ++i) {
        if (!pages[i].is_seen) continue;
        const bool is_new = n_newer-- <= n_seen / 2;
        if (has_to_stay(pages, i, rules)) continue;
        if (is_new && first) break;
        if (!first || score_of(pages[i]) < score_of(pages[*first])) first = i;
        if (is_new) break;  // the oldest of them
    }
    return first;
}

std::int32_t least_cells(const ResidencyRules& rules, std::int32_t n_call) {
    const auto n_pages = static_cast<std::int32_t>(rules.n_sinks + rules.n_recent);
    return (n_pages + 1) * kPageSize + n_call;
}

}  // namespace luce::memory
