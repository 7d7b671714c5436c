// PinnedRanges: pages of a text that a lane always sees, asked for by positions: a system prompt, a file. Rounded
// outwards to pages, since a page is seen as a whole. Pure; knows neither lanes nor pools.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/token.h"

namespace luce::memory {

class PinnedRanges {
public:
    PinnedRanges() = default;  // none
    // The pages of all of them; a span that is empty or inverted pins nothing. REQUIRES: no position below 0.
    explicit PinnedRanges(std::span<const PositionSpan> spans, std::span<const PositionSpan> more = {});

    bool holds(std::size_t page) const;

    // How many of the pages from this one on.
    std::size_t n_from(std::size_t page) const;

    // What the pages hold, in rising order, apart from each other.
    const std::vector<PositionSpan>& spans() const { return spans_; }

private:
    std::vector<PositionSpan> spans_;
};

}  // namespace luce::memory
