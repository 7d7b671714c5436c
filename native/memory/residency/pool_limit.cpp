#include "memory/residency/pool_limit.h"

#include <algorithm>

namespace luce::memory {

std::int32_t PoolLimit::grown(std::int32_t n_now, std::int32_t n_more, std::int32_t n_step, std::int32_t n_most) {
    return std::min((n_now + n_more + n_step - 1) / n_step * n_step, n_most);
}

std::optional<std::int32_t> PoolLimit::note_call(std::int32_t n_needed, std::int32_t n_now, std::int32_t n_step) {
    const std::int32_t n_fewer = (n_now - 1) / n_step * n_step;
    if (n_fewer - n_needed < n_step) {
        n_calm_ = 0;
        return std::nullopt;
    }
    if (++n_calm_ < kCalm) return std::nullopt;
    n_calm_ -= kBetween;
    return n_fewer;
}

}  // namespace luce::memory
