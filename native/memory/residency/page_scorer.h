// PageScorer: which pages of a lane's text matter to what the lane computes now. `llama/` implements it with the
// model's own queries and keys, and with a small model that reads the text beside it; tests implement it with
// arithmetic. All calls come from the one thread that runs the engine, never during a computation; only scores are
// found beside one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/token.h"
#include "memory/tiers/blob.h"

namespace luce::memory {

// A page's keys in few bits, in the host's memory. Never changes.
using PageKeys = std::shared_ptr<const Bytes>;

class PageScorer {
public:
    virtual ~PageScorer() = default;

    // Whether it tells pages by keys_of() their rows; otherwise it reads the text itself, and keys_of() is not called.
    virtual bool needs_keys() const = 0;

    // Of a full page's rows, as KvDevice::read() gives them (and settled). REQUIRES: needs_keys().
    virtual PageKeys keys_of(std::span<const std::uint8_t> rows) = 0;

    // Whether the queries of what the lane computes from now on are noted; the newest few are kept.
    virtual void watch(LaneId lane, bool is_watched) = 0;

    // The lane has computed this much of its text, of whose pages it will have to choose: a good moment to read on.
    virtual void read(LaneId lane, std::span<const Token> text) = 0;

    // Begins to find out how much each page matters to the text's last tokens, or to their queries that were noted,
    // which are forgotten; beside the running computation. The pages are the text's first ones, null unless
    // needs_keys(). False: nothing can be said, and nothing has begun. REQUIRES: no other of this lane is under way.
    virtual bool begin_scores(LaneId lane, std::span<const Token> text, std::vector<PageKeys> pages) = 0;

    // Waits for it: one score a page, higher is more; none if it failed. REQUIRES: it was begun.
    virtual std::vector<float> end_scores(LaneId lane) = 0;

    // The lane serves another text now: nothing is noted of it, it is not watched, and what was begun is given up.
    virtual void forget(LaneId lane) = 0;
};

}  // namespace luce::memory
