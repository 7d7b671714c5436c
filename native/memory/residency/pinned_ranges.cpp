#include "memory/residency/pinned_ranges.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "memory/tiers/blob.h"

namespace luce::memory {
namespace {

constexpr std::size_t kPage = kPageSize;

// The first position of the page, or of the one after the last whole page that positions reach.
Position begin_of(std::size_t page) {
    constexpr std::size_t kMost = std::numeric_limits<Position>::max() / kPage;
    return static_cast<Position>(std::min(page, kMost) * kPage);
}

std::size_t first_page(const PositionSpan& span) { return static_cast<std::size_t>(span.begin) / kPage; }
std::size_t end_page(const PositionSpan& span) { return (static_cast<std::size_t>(span.end) + kPage - 1) / kPage; }

}  // namespace

PinnedRanges::PinnedRanges(std::span<const PositionSpan> spans, std::span<const PositionSpan> more) {
    std::vector<PositionSpan> rounded;
    for (const auto& part : {spans, more}) {
        for (const PositionSpan& span : part) {
            if (span.begin < span.end) rounded.push_back({begin_of(first_page(span)), begin_of(end_page(span))});
        }
    }
    std::sort(rounded.begin(), rounded.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (const PositionSpan& span : rounded) {
        if (!spans_.empty() && span.begin <= spans_.back().end) {
            spans_.back().end = std::max(spans_.back().end, span.end);
        } else {
            spans_.push_back(span);
        }
    }
}

bool PinnedRanges::holds(std::size_t page) const {
    const auto after = std::upper_bound(spans_.begin(), spans_.end(), page,
                                        [](std::size_t wanted, const auto& span) { return wanted < first_page(span); });
    return after != spans_.begin() && page < end_page(*std::prev(after));
}

std::size_t PinnedRanges::n_from(std::size_t page) const {
    std::size_t n = 0;
    for (const PositionSpan& span : spans_) {
        const std::size_t end = end_page(span);
        n += end > page ? end - std::max(page, first_page(span)) : 0;
    }
    return n;
}

}  // namespace luce::memory
