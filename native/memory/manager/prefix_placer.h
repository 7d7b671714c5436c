// PrefixPlacer: puts a prefix that was matched into a lane: pages into the pool, the rows behind them, the state.
// Decides nothing about which prefix; knows no requests.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "memory/manager/lane_pool.h"

namespace luce::memory {

class PrefixPlacer {
public:
    // All must outlive it.
    PrefixPlacer(KvDevice& device, PrefixTree& tree, PageCache& cache, LanePool& pool)
        : device_(device), tree_(tree), cache_(cache), pool_(pool) {}

    // Errors: no_room, internal, out_of_memory; the lane is empty then. `match` says afterwards which of its pages the
    // lane sees.
    Result<void> place(LaneId lane, PrefixMatch& match, std::span<const Token> text, const PinnedRanges& pins);

private:
    // The pages that the lane uses so far, to be given back if it comes to nothing.
    struct Taken {
        std::vector<Page*> seen;
        std::vector<Page*> unseen;
    };

    void clear_the_way(const PrefixMatch& match, std::int32_t n_text);
    bool is_in_the_way(std::int32_t n_foreign, std::int32_t n_text) const;
    void set_foreign_aside(std::size_t n_own_aside, std::int32_t n_text);
    Result<void> take_pages(const PrefixMatch& match, std::int32_t n_text, Taken& taken);
    Result<void> write_rest(LaneId lane, const PrefixMatch& match, std::span<const Token> text, const Bytes& rows);

    KvDevice& device_;
    PrefixTree& tree_;
    PageCache& cache_;
    LanePool& pool_;
};

}  // namespace luce::memory
