// PageSelector: finds out which pages of a lane's text matter to what it computes, and brings them back while it
// computes on. Knows when to ask the scorer and what to move; LanePool moves.
#pragma once

#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "memory/manager/lane.h"
#include "memory/manager/lane_pool.h"

namespace luce::memory {

class PageSelector {
public:
    // All must outlive it. `residency`: null where lanes see all of their texts; then, and without a scorer, nothing is
    // ever asked.
    PageSelector(KvDevice& device, PageCache& cache, Lanes& lanes, LanePool& pool, const ResidencyConfig* residency,
                 const Clock& clock)
        : device_(device), cache_(cache), lanes_(lanes), pool_(pool), residency_(residency), clock_(clock) {}

    bool uses_scores() const { return residency_ != nullptr && residency_->scorer != nullptr; }

    // Whether the prompt's end is still to say which pages matter, and where the next computation has to stop for it.
    bool awaits_choice(const Lane& lane, Position n_computed) const;
    Position next_choice(const Lane& lane, Position n_computed) const;

    // The lane has computed its text up to n_computed.
    void advance(LaneId id, std::span<const Token> text, Position n_computed);

private:
    bool outgrows_pool(const Lane& lane, Position n_computed) const;
    void ask_for_pages(LaneId id, std::span<const Token> text);
    Result<bool> begin_scoring(LaneId id, std::span<const Token> text);
    void choose_pages_of(LaneId id, bool is_turn);
    void plan_moves_of(LaneId id, bool is_turn);
    void make_all_moves(LaneId id);
    void make_next_move(LaneId id);
    void warn_of_moves(const Error& error);

    KvDevice& device_;
    PageCache& cache_;
    Lanes& lanes_;
    LanePool& pool_;
    const ResidencyConfig* residency_;
    const Clock& clock_;
    bool has_warned_of_moves_ = false;
};

}  // namespace luce::memory
