// ExpertLayout: how much of each expert tensor of a mixture lies in the device's memory, and which expert where. A
// tensor's first part is on the device, the rest on the host, with one border that memory pages allow. Experts are in
// places, counted from the front. One place on the device is free: who comes is copied there before who goes has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace luce::experts {

// A weight of all experts of a layer, such as their down projections.
struct ExpertTensor {
    std::string name;
    std::int32_t layer = 0;
    std::int32_t n_experts = 0;
    std::size_t expert_bytes = 0;  // of one expert, which follow one another
};

// Of one tensor, in bytes; multiples of the granularity.
struct TensorParts {
    std::size_t device_bytes = 0;
    std::size_t host_bytes = 0;
    std::size_t total_bytes() const { return device_bytes + host_bytes; }
};

struct LayerExperts {
    std::int32_t layer = 0;
    std::int32_t n_resident = 0;
    std::vector<std::int32_t> place_of;   // [expert]
    std::vector<std::int32_t> expert_in;  // [place]; kNoExpert in the free one
    std::int32_t free_place = -1;         // of those on the device; -1: nothing ever moves, all or none are there
    std::int32_t n_device_places = 0;     // the first ones
    std::int32_t first_host_place = 0;    // from here on wholly on the host; one that the border cuts keeps its expert
    std::vector<std::size_t> tensors;     // their indices

    std::int32_t n_experts() const { return static_cast<std::int32_t>(place_of.size()); }
    bool is_whole() const { return n_resident == n_experts(); }
};

inline constexpr std::int32_t kNoExpert = -1;

// How often each expert was used: [index of the layer in ExpertLayout::layers][expert]. Empty: nothing is known.
using ExpertUse = std::vector<std::vector<double>>;

// Bytes behind a tensor's last expert that a kernel may read: they are there, and zero.
inline constexpr std::size_t kTailBytes = 512;

struct ExpertLayout {
    std::vector<ExpertTensor> tensors;
    std::vector<TensorParts> parts;  // of each tensor
    std::vector<LayerExperts> layers;
    std::size_t granularity = 0;

    std::size_t device_bytes() const;
    std::size_t host_bytes() const;
    std::int64_t n_experts() const;   // of all layers
    std::int64_t n_resident() const;  // of those
};

// The experts used most get the budget, whatever their layer; where nothing is known all layers get the same share.
// A layer that is whole has its experts in the order of their ids.
// `budget`: of the device, in bytes. `stays_split`: no layer becomes whole, for a border that may move.
// Errors: bad_args, for tensors of a layer that differ in their number of experts.
Result<ExpertLayout> lay_out(std::vector<ExpertTensor> tensors, std::size_t budget, std::size_t granularity,
                             const ExpertUse& use, bool stays_split = false);

// Of a tensor's memory, where so many of its experts are resident: with the free place, where experts move.
std::size_t bytes_on_device(const ExpertTensor& tensor, std::int32_t n_resident, std::size_t granularity);
std::size_t bytes_on_device(const ExpertLayout& layout, const LayerExperts& layer, std::int32_t n_resident);

// The first place that lies wholly on the host.
std::int32_t first_host_place(const ExpertLayout& layout, const LayerExperts& layer);

// What of a layer's uses its experts have, the most used first; where nothing is known, the layers' even shares.
std::vector<double> shares_of(const LayerExperts& layer, const std::vector<double>* use);

}  // namespace luce::experts
