// PageScorer: which pages of a lane's text matter to what the lane computes now. `llama/` implements it with the
// model's own queries and keys; tests implement it with arithmetic. All calls come from the one thread that runs the
// engine, never during a computation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/token.h"
#include "memory/blob.h"

namespace luce::memory {

// A page's keys in few bits, in the host's memory. Never changes.
using PageKeys = std::shared_ptr<const Bytes>;

class PageScorer {
public:
    virtual ~PageScorer() = default;

    virtual std::size_t keys_bytes() const = 0;  // of one page

    // Of a full page's rows, as KvDevice::read() gives them (and settled).
    virtual PageKeys keys_of(std::span<const std::uint8_t> rows) = 0;

    // Whether the queries of what the lane computes from now on are noted; the newest few are kept.
    virtual void watch(LaneId lane, bool is_watched) = 0;

    // How much each page matters to the queries that were noted, higher is more; they are forgotten then. Empty: none
    // were noted.
    virtual std::vector<float> scores(LaneId lane, std::span<const PageKeys> pages) = 0;

    // The lane serves another text now: nothing is noted of it, and it is not watched.
    virtual void forget(LaneId lane) = 0;
};

}  // namespace luce::memory
