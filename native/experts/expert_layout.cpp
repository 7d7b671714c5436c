#include "experts/expert_layout.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace luce::experts {
namespace {

std::size_t rounded_up(std::size_t n_bytes, std::size_t granularity) {
    return (n_bytes + granularity - 1) / granularity * granularity;
}

// With the free place, where experts move.
std::size_t n_places_on_device(const ExpertTensor& tensor, std::int32_t n_resident) {
    const bool moves = n_resident > 0 && n_resident < tensor.n_experts;
    return static_cast<std::size_t>(n_resident) + (moves ? 1 : 0);
}

// The experts of a layer, the most used first; without knowledge by their ids.
std::vector<std::int32_t> by_use(std::size_t n_experts, const std::vector<double>* use) {
    std::vector<std::int32_t> order(n_experts);
    std::iota(order.begin(), order.end(), 0);
    if (use == nullptr) return order;
    std::stable_sort(order.begin(), order.end(), [use](std::int32_t a, std::int32_t b) {
        return (*use)[static_cast<std::size_t>(a)] > (*use)[static_cast<std::size_t>(b)];
    });
    return order;
}

struct Candidate {
    double share = 0;
    std::size_t layer = 0;
};

std::vector<Candidate> candidates(const ExpertLayout& layout, const ExpertUse& use) {
    std::vector<Candidate> all;
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
        for (const double share : shares_of(layout.layers[l], use.empty() ? nullptr : &use[l]))
            all.push_back({share, l});
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
    return all;
}

// One expert after the other, until none fits any more.
void give(ExpertLayout& layout, std::size_t budget, const ExpertUse& use, bool stays_split) {
    std::size_t n_left = budget;
    for (const Candidate& next : candidates(layout, use)) {
        LayerExperts& layer = layout.layers[next.layer];
        if (stays_split && layer.n_resident + 1 == layer.n_experts()) continue;
        const std::size_t before = bytes_on_device(layout, layer, layer.n_resident);
        const std::size_t after = bytes_on_device(layout, layer, layer.n_resident + 1);
        if (after - before > n_left) continue;
        n_left -= after - before;
        ++layer.n_resident;
    }
}

// Who is in which place, the most used first.
void place(LayerExperts& layer, const std::vector<std::int32_t>& order, const ExpertLayout& layout) {
    const bool moves = layer.n_resident > 0 && !layer.is_whole();
    layer.free_place = moves ? layer.n_resident : -1;
    layer.n_device_places = layer.n_resident + (moves ? 1 : 0);
    layer.first_host_place = first_host_place(layout, layer);
    layer.expert_in.clear();
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (static_cast<std::int32_t>(layer.expert_in.size()) == layer.free_place) layer.expert_in.push_back(kNoExpert);
        // Where nothing can change, ids are places.
        const std::int32_t expert = moves ? order[i] : static_cast<std::int32_t>(i);
        layer.place_of[static_cast<std::size_t>(expert)] = static_cast<std::int32_t>(layer.expert_in.size());
        layer.expert_in.push_back(expert);
    }
}

Result<void> gather_layers(ExpertLayout& layout) {
    std::map<std::int32_t, LayerExperts> layers;
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
        const ExpertTensor& tensor = layout.tensors[i];
        LayerExperts& layer = layers[tensor.layer];
        layer.layer = tensor.layer;
        const auto n = static_cast<std::size_t>(std::max(tensor.n_experts, 0));
        if (n == 0 || tensor.expert_bytes == 0 || (!layer.tensors.empty() && layer.place_of.size() != n)) {
            return Error{ErrorCode::bad_args, "the experts of layer " + std::to_string(tensor.layer) + " (" +
                                                  tensor.name + ") are not as many in each tensor"};
        }
        layer.place_of.resize(n);
        layer.tensors.push_back(i);
    }
    for (auto& [number, layer] : layers) layout.layers.push_back(std::move(layer));
    return {};
}

}  // namespace

std::size_t bytes_on_device(const ExpertTensor& tensor, std::int32_t n_resident, std::size_t granularity) {
    const std::size_t n_tail = n_resident == tensor.n_experts ? kTailBytes : 0;
    return rounded_up(tensor.expert_bytes * n_places_on_device(tensor, n_resident) + n_tail, granularity);
}

std::size_t bytes_on_device(const ExpertLayout& layout, const LayerExperts& layer, std::int32_t n_resident) {
    std::size_t n_bytes = 0;
    for (const std::size_t i : layer.tensors) {
        n_bytes += bytes_on_device(layout.tensors[i], n_resident, layout.granularity);
    }
    return n_bytes;
}

std::int32_t first_host_place(const ExpertLayout& layout, const LayerExperts& layer) {
    std::int32_t first = layer.n_device_places;
    for (const std::size_t i : layer.tensors) {
        const std::size_t n_bytes = bytes_on_device(layout.tensors[i], layer.n_resident, layout.granularity);
        const std::size_t n_cut = (n_bytes + layout.tensors[i].expert_bytes - 1) / layout.tensors[i].expert_bytes;
        first = std::max(first, static_cast<std::int32_t>(n_cut));
    }
    return first;
}

std::vector<double> shares_of(const LayerExperts& layer, const std::vector<double>* use) {
    const std::size_t n = layer.place_of.size();
    std::vector<double> shares = use == nullptr ? std::vector<double>(n) : *use;
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    std::sort(shares.begin(), shares.end(), std::greater<>());
    for (std::size_t i = 0; i < n; ++i) {
        shares[i] = sum > 0 ? shares[i] / sum : static_cast<double>(n - i) / static_cast<double>(n * n);
    }
    return shares;
}

std::size_t ExpertLayout::device_bytes() const {
    return std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                           [](std::size_t sum, const TensorParts& part) { return sum + part.device_bytes; });
}

std::size_t ExpertLayout::host_bytes() const {
    return std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                           [](std::size_t sum, const TensorParts& part) { return sum + part.host_bytes; });
}

std::int64_t ExpertLayout::n_experts() const {
    return std::accumulate(layers.begin(), layers.end(), std::int64_t{0}, [](std::int64_t sum, const auto& layer) {
        return sum + static_cast<std::int64_t>(layer.place_of.size());
    });
}

std::int64_t ExpertLayout::n_resident() const {
    return std::accumulate(layers.begin(), layers.end(), std::int64_t{0},
                           [](std::int64_t sum, const auto& layer) { return sum + layer.n_resident; });
}

Result<ExpertLayout> lay_out(std::vector<ExpertTensor> tensors, std::size_t budget, std::size_t granularity,
                             const ExpertUse& use, bool stays_split) {
    ExpertLayout layout;
    layout.tensors = std::move(tensors);
    layout.granularity = granularity;
    if (Result<void> gathered = gather_layers(layout); !gathered) return gathered.error();
    give(layout, budget, use, stays_split);
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
        LayerExperts& layer = layout.layers[l];
        place(layer, by_use(layer.place_of.size(), use.empty() ? nullptr : &use[l]), layout);
    }
    layout.parts.resize(layout.tensors.size());
    for (const LayerExperts& layer : layout.layers) {
        for (const std::size_t i : layer.tensors) {
            const ExpertTensor& tensor = layout.tensors[i];
            const std::size_t n_all = tensor.expert_bytes * layer.expert_in.size() + kTailBytes;
            TensorParts& part = layout.parts[i];
            part.device_bytes = bytes_on_device(tensor, layer.n_resident, granularity);
            part.host_bytes =
                rounded_up(n_all, granularity) - std::min(rounded_up(n_all, granularity), part.device_bytes);
        }
    }
    return layout;
}

}  // namespace luce::experts
