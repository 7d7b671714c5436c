#include "experts/expert_hits.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

namespace luce::experts {
namespace {

constexpr double kEnoughUses = 10'000;  // of all experts: a hundred tokens or so of a real mixture

struct Point {
    double share, hits;
};
constexpr Point kCommon[] = {{0, 0}, {0.06, 0.40}, {0.12, 0.61}, {0.25, 0.80}, {0.33, 0.865}, {0.52, 0.96}, {1, 1}};

double common_hits(double share) {
    const auto* above = std::find_if(std::begin(kCommon) + 1, std::end(kCommon) - 1,
                                     [share](const Point& point) { return point.share >= share; });
    const Point &from = above[-1], &to = *above;
    return from.hits + (to.hits - from.hits) * (share - from.share) / (to.share - from.share);
}

}  // namespace

double hits_at(double share, const ExpertProfile& known) {
    share = std::clamp(share, 0.0, 1.0);
    std::vector<double> uses;
    for (const LayerUse& layer : known.layers) uses.insert(uses.end(), layer.decode.begin(), layer.decode.end());
    const double n_all = std::accumulate(uses.begin(), uses.end(), 0.0);
    if (n_all < kEnoughUses) return common_hits(share);
    std::sort(uses.begin(), uses.end(), std::greater<>());
    const auto n_held = static_cast<std::ptrdiff_t>(std::floor(share * static_cast<double>(uses.size())));
    return std::accumulate(uses.begin(), uses.begin() + n_held, 0.0) / n_all;
}

bool is_reading_cheaper(double share, double hits, const ExpertRates& rates) {
    return (1 - hits) * rates.processor <= (1 - share) * rates.link;
}

}  // namespace luce::experts
