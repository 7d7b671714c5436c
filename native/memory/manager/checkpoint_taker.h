// CheckpointTaker: takes the checkpoints of running texts where later texts will depart, and thins those that stand too
// close. Where they stand is planned by checkpoints/checkpoint_plan; what room they are worth is PageCache's to say.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "memory/manager/lane.h"
#include "memory/manager/page_selector.h"

namespace luce::memory {

class CheckpointTaker {
public:
    // All must outlive it. has_disk: whether checkpoints go into files, too.
    CheckpointTaker(KvDevice& device, PrefixTree& tree, PageCache& cache, Lanes& lanes, const PageSelector& selector,
                    bool has_disk)
        : device_(device), tree_(tree), cache_(cache), lanes_(lanes), selector_(selector), has_disk_(has_disk) {}

    // The lane's plan: what of its text need not be computed, and how far it is known beyond that.
    void plan(Lane& lane, const PrefixMatch& prefix_match, std::span<const Token> text,
              const MemoryRequest& request) const;

    // The lane has computed its text up to n_computed: what was planned there is taken.
    void advance(LaneId id, std::span<const Token> text, Position n_computed, std::span<const float> logits);

    // The lane's checkpoint at `position` <= n_computed behind `page`: rows of any position, state only of the last.
    // Errors: no_room, out_of_memory, internal.
    Result<Checkpoint*> take(LaneId id, Page& page, std::span<const Token> text, Position n_computed, Position position,
                             CheckpointKind kind, std::span<const float> logits);

    // A checkpoint where the lane stands, if it is of use and there is room.
    void take_here(LaneId id, std::span<const Token> text, Position n_computed, CheckpointKind kind,
                   std::span<const float> logits);

    // The lane's last mark goes to disk with the scores that its pages have now.
    void save_late(Lane& lane);

private:
    void take_rows(LaneId id, std::span<const Token> text, Position n_computed, const PlannedCheckpoint& planned);
    void keep_turn(Page& last, std::span<const Token> text, Position turn) const;
    bool keep_or_warn(const Result<Checkpoint*>& checkpoint);
    void thin(Page& last, Position end);

    KvDevice& device_;
    PrefixTree& tree_;
    PageCache& cache_;
    Lanes& lanes_;
    const PageSelector& selector_;
    bool has_disk_;
    bool has_warned_ = false;
};

}  // namespace luce::memory
