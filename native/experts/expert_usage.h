// ExpertUsage: counts which experts are used while the model serves, and says which ones should change places. Counts
// of prompts and of answers are kept apart: an answer's token waits for each expert that the host holds, a prompt's
// thousands read nearly all of them. Old counts fade, so that the set follows what is asked today.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "experts/expert_layout.h"
#include "experts/expert_profile.h"

namespace luce::experts {

// An expert that comes onto the device, and one that makes room for it.
struct Exchange {
    std::size_t layer = 0;  // index in ExpertLayout::layers
    std::int32_t comes = kNoExpert;
    std::int32_t goes = kNoExpert;
    double gain = 0;  // uses, of those that still count
};

class ExpertUsage {
public:
    // Takes up what the profile knows of these layers. `fades`: old counts do, for a set that follows what is asked;
    // else all count alike, for a profile of many texts.
    ExpertUsage(const ExpertLayout& layout, const ExpertProfile& known, bool fades = true);

    // `n_tokens` were computed together; count() says which experts these used in a layer.
    void begin_call(std::int32_t n_tokens, bool is_prefill);
    void count(std::size_t layer, std::span<const std::int32_t> experts);

    // What decides which experts are resident.
    ExpertUse values() const;

    // The most useful one of a layer; none (gain 0) where nothing is worth it.
    Exchange best(const ExpertLayout& layout, std::size_t layer) const;

    ExpertProfile profile(const std::string& identity) const;

private:
    double value(std::size_t layer, std::size_t expert) const;
    void rescale();

    std::vector<LayerUse> layers_;  // in units of weight_
    double weight_ = 1;             // of a use now: grows, so that earlier ones fade
    bool fades_ = true;
    bool is_prefill_ = false;
};

}  // namespace luce::experts
