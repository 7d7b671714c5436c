#include "experts/expert_border.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace luce::experts {
namespace {

// A layer's border as it would be, in the units in which memory comes and goes.
struct Border {
    std::size_t layer = 0;
    std::int32_t n_before = 0;
    std::int32_t n_resident = 0;
    std::vector<double> shares;
};

std::vector<Border> borders_of(const ExpertLayout& layout, const ExpertUse& use) {
    std::vector<Border> all;
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
        const LayerExperts& layer = layout.layers[l];
        if (layer.free_place < 0) continue;
        all.push_back({l, layer.n_resident, layer.n_resident, shares_of(layer, use.empty() ? nullptr : &use[l])});
    }
    return all;
}

// The next border on this way that is worth memory: with how many bytes more or less, and what it is worth.
struct Step {
    std::int32_t n_resident = 0;
    std::size_t n_bytes = 0;
    double share = 0;
};

// Of borders with the same memory the last one has the most experts.
std::int32_t furthest(const ExpertLayout& layout, const LayerExperts& layer, std::int32_t n, std::int32_t most) {
    const std::size_t n_bytes = bytes_on_device(layout, layer, n);
    while (n < most && bytes_on_device(layout, layer, n + 1) == n_bytes) ++n;
    return n;
}

std::optional<Step> step_back(const ExpertLayout& layout, const Border& border, std::int32_t least) {
    const LayerExperts& layer = layout.layers[border.layer];
    const std::size_t now = bytes_on_device(layout, layer, border.n_resident);
    Step step{.n_resident = border.n_resident};
    while (step.n_resident > least && step.n_bytes == 0) {
        step.share += border.shares[static_cast<std::size_t>(--step.n_resident)];
        step.n_bytes = now - bytes_on_device(layout, layer, step.n_resident);
    }
    return step.n_bytes > 0 ? std::optional(step) : std::nullopt;
}

std::optional<Step> step_on(const ExpertLayout& layout, const Border& border, std::int32_t most) {
    if (border.n_resident >= most) return std::nullopt;
    const LayerExperts& layer = layout.layers[border.layer];
    Step step;
    step.n_resident = furthest(layout, layer, border.n_resident + 1, most);
    step.n_bytes = bytes_on_device(layout, layer, step.n_resident) - bytes_on_device(layout, layer, border.n_resident);
    for (std::int32_t n = border.n_resident; n < step.n_resident; ++n) {
        step.share += border.shares[static_cast<std::size_t>(n)];
    }
    return step;
}

std::vector<BorderMove> moves_of(const std::vector<Border>& borders) {
    std::vector<BorderMove> moves;
    for (const Border& border : borders) {
        if (border.n_resident != border.n_before) moves.push_back({border.layer, border.n_resident});
    }
    return moves;
}

double worth(const Step& step) { return step.share / static_cast<double>(std::max<std::size_t>(1, step.n_bytes)); }

}  // namespace

std::vector<BorderMove> give_up(const ExpertLayout& layout, std::size_t n_bytes, std::span<const std::int32_t> least,
                                const ExpertUse& use) {
    std::vector<Border> borders = borders_of(layout, use);
    for (std::size_t n_given = 0; n_given < n_bytes;) {
        Border* cheapest = nullptr;
        Step best;
        for (Border& border : borders) {
            const std::optional<Step> step = step_back(layout, border, least[border.layer]);
            if (!step || (cheapest != nullptr && worth(*step) >= worth(best))) continue;
            cheapest = &border;
            best = *step;
        }
        if (cheapest == nullptr) break;
        cheapest->n_resident = best.n_resident;
        n_given += best.n_bytes;
    }
    return moves_of(borders);
}

std::vector<BorderMove> take_back(const ExpertLayout& layout, std::size_t n_bytes, std::span<const std::int32_t> most,
                                  const ExpertUse& use) {
    std::vector<Border> borders = borders_of(layout, use);
    for (;;) {
        Border* dearest = nullptr;
        Step best;
        for (Border& border : borders) {
            const std::optional<Step> step = step_on(layout, border, most[border.layer]);
            if (!step || step->n_bytes > n_bytes || (dearest != nullptr && worth(*step) <= worth(best))) continue;
            dearest = &border;
            best = *step;
        }
        if (dearest == nullptr) return moves_of(borders);
        dearest->n_resident = best.n_resident;
        n_bytes -= best.n_bytes;
    }
}

std::optional<Relocation> move_border(ExpertLayout& layout, const BorderMove& move, const std::vector<double>* use) {
    LayerExperts& layer = layout.layers[move.layer];
    layer.n_resident = move.n_resident;
    layer.n_device_places = move.n_resident + 1;
    layer.first_host_place = first_host_place(layout, layer);
    for (const std::size_t i : layer.tensors) {
        TensorParts& part = layout.parts[i];
        const std::size_t n_all = part.total_bytes();
        part.device_bytes = bytes_on_device(layout.tensors[i], layer.n_resident, layout.granularity);
        part.host_bytes = n_all - part.device_bytes;
    }
    if (layer.free_place < layer.n_device_places) return std::nullopt;
    Relocation found{.to = layer.free_place};
    double fewest = std::numeric_limits<double>::max();
    for (std::int32_t place = 0; place < layer.n_device_places; ++place) {
        const auto expert = static_cast<std::size_t>(layer.expert_in[static_cast<std::size_t>(place)]);
        const double n_uses = use == nullptr ? 0 : (*use)[expert];
        if (n_uses > fewest) continue;
        fewest = n_uses;
        found.from = place;
    }
    std::int32_t& expert = layer.expert_in[static_cast<std::size_t>(found.from)];
    layer.place_of[static_cast<std::size_t>(expert)] = found.to;
    layer.expert_in[static_cast<std::size_t>(found.to)] = std::exchange(expert, kNoExpert);
    layer.free_place = found.from;
    return found;
}

}  // namespace luce::experts
