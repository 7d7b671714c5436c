// What a lane must always see of its text, and what room in the pool that takes. Pure; the pool itself is LanePool's.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "memory/manager/kv_cache_types.h"

namespace luce::memory {

class LanePins {
public:
    // `residency`: null where lanes see all of their texts.
    explicit LanePins(const ResidencyConfig* residency) : residency_(residency) {}

    PinnedRanges of(const MemoryRequest& request) const;

    // Of n tokens that are still to be computed of a request's text, so many need room at once.
    std::int32_t n_least_cells(std::int32_t n_tokens, const MemoryRequest& request, Position n_computed) const;

    // Errors: bad_args (outside the prompt, or more than a pool of n_pool cells can hold).
    Result<void> check(const MemoryRequest& request, Position n_prompt, std::int32_t n_pool) const;

private:
    const ResidencyConfig* residency_;
};

}  // namespace luce::memory
