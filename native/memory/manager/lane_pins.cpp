#include "memory/manager/lane_pins.h"

#include <algorithm>
#include <string>

namespace luce::memory {
namespace {

std::string tokens_of(std::int64_t n_pages) { return std::to_string(n_pages * kPageSize) + " tokens"; }

}  // namespace

PinnedRanges LanePins::of(const MemoryRequest& request) const {
    return residency_ != nullptr ? PinnedRanges(request.pins, residency_->pins) : PinnedRanges();
}

// Pages that nobody has computed yet need cells of their own; those that are there are held already.
std::int32_t LanePins::n_least_cells(std::int32_t n_tokens, const MemoryRequest& request, Position n_computed) const {
    if (residency_ == nullptr) return n_tokens;
    const auto n_known = static_cast<std::size_t>(n_computed / kPageSize);
    const auto n_pinned = static_cast<std::int64_t>(of(request).n_from(std::max(residency_->rules.n_sinks, n_known)));
    return static_cast<std::int32_t>(std::min<std::int64_t>(n_tokens, residency_->n_least + n_pinned * kPageSize));
}

Result<void> LanePins::check(const MemoryRequest& request, Position n_prompt, std::int32_t n_pool) const {
    for (const PositionSpan& span : request.pins) {
        if (span.begin >= 0 && span.begin < span.end && span.end <= n_prompt) continue;
        return Error{ErrorCode::bad_args,
                     "pin=" + std::to_string(span.begin) + ":" + std::to_string(span.end) +
                         " is not within the prompt, which has the positions 0:" + std::to_string(n_prompt)};
    }
    if (residency_ == nullptr || request.pins.empty()) return {};
    const auto n_pinned = static_cast<std::int64_t>(of(request).n_from(residency_->rules.n_sinks));
    const std::int64_t n_most = std::max(0, n_pool - residency_->n_least) / kPageSize;
    if (n_pinned <= n_most) return {};
    const std::string with = residency_->pins.empty() ? "" : " with --kv-offload-pin";
    return Error{ErrorCode::bad_args, "pin= holds" + with + " " + tokens_of(n_pinned) + " in whole pages of " +
                                          std::to_string(kPageSize) + "; the pool of " + std::to_string(n_pool) +
                                          " has room for " + tokens_of(n_most) +
                                          " beside the first page, the newest ones and a slice"};
}

}  // namespace luce::memory
