// ExpertBorder: moves the border between a layer's parts on the device and on the host, for memory that the device
// needs for something else and gives back later. Experts keep their places; those behind the border are on the host
// then, and exchanges bring the ones that are used most back to its front. Copies nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "experts/expert_layout.h"

namespace luce::experts {

struct BorderMove {
    std::size_t layer = 0;        // index in ExpertLayout::layers
    std::int32_t n_resident = 0;  // from then on; of a layer that has none on the device or all, never another one
};

// What gives up at least `n_bytes` of the device's memory and costs the fewest uses; less where `least` ([layer]
// residents) leaves no more. One move a layer at most.
std::vector<BorderMove> give_up(const ExpertLayout& layout, std::size_t n_bytes, std::span<const std::int32_t> least,
                                const ExpertUse& use);

// What takes at most `n_bytes` more, for the most uses, up to `most` residents.
std::vector<BorderMove> take_back(const ExpertLayout& layout, std::size_t n_bytes, std::span<const std::int32_t> most,
                                  const ExpertUse& use);

// An expert whose bytes have to be copied into the free place, which lies behind the new border: its own becomes the
// free one.
struct Relocation {
    std::int32_t from = 0;
    std::int32_t to = 0;
};

// The layer as it is after the move. `use`: of its experts, or null.
std::optional<Relocation> move_border(ExpertLayout& layout, const BorderMove& move, const std::vector<double>* use);

}  // namespace luce::experts
