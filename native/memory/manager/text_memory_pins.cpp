// The part of KvCacheManager that knows what a lane must always see, and what room that takes.
#include <algorithm>
#include <string>

#include "memory/manager/kv_cache_manager.h"

namespace luce::memory {
namespace {

std::string tokens_of(std::int64_t n_pages) { return std::to_string(n_pages * kPageSize) + " tokens"; }

}  // namespace

PinnedRanges KvCacheManager::pins_of(const MemoryRequest& request) const {
    return is_bounded() ? PinnedRanges(request.pins, config_.residency->pins) : PinnedRanges();
}

// Pages that nobody has computed yet need cells of their own; those that are there are held already.
std::int32_t KvCacheManager::n_least_cells(std::int32_t n_tokens, const MemoryRequest& request,
                                           Position n_computed) const {
    if (!is_bounded()) return n_tokens;
    const ResidencyConfig& residency = *config_.residency;
    const auto n_known = static_cast<std::size_t>(n_computed / kPageSize);
    const auto n_pinned =
        static_cast<std::int64_t>(pins_of(request).n_from(std::max(residency.rules.n_sinks, n_known)));
    return static_cast<std::int32_t>(std::min<std::int64_t>(n_tokens, residency.n_least + n_pinned * kPageSize));
}

Result<void> KvCacheManager::check_pins(const MemoryRequest& request, Position n_prompt) const {
    for (const PositionSpan& span : request.pins) {
        if (span.begin >= 0 && span.begin < span.end && span.end <= n_prompt) continue;
        return Error{ErrorCode::bad_args,
                     "pin=" + std::to_string(span.begin) + ":" + std::to_string(span.end) +
                         " is not within the prompt, which has the positions 0:" + std::to_string(n_prompt)};
    }
    if (!is_bounded() || request.pins.empty()) return {};
    const ResidencyConfig& residency = *config_.residency;
    const auto n_pinned = static_cast<std::int64_t>(pins_of(request).n_from(residency.rules.n_sinks));
    const std::int64_t n_most = std::max(0, n_pool_ - residency.n_least) / kPageSize;
    if (n_pinned <= n_most) return {};
    const std::string with = residency.pins.empty() ? "" : " with --kvflash-pin";
    return Error{ErrorCode::bad_args, "pin= holds" + with + " " + tokens_of(n_pinned) + " in whole pages of " +
                                          std::to_string(kPageSize) + "; the pool of " + std::to_string(n_pool_) +
                                          " has room for " + tokens_of(n_most) +
                                          " beside the first page, the newest ones and a slice"};
}

}  // namespace luce::memory
