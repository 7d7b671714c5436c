// TreeBranches: a call's trees as libllama computes them, as sequences that share their prefix. The lane's own is
// the first of them; the others are borrowed, see for one call what the lane sees, and leave nothing behind. Knows
// cells and sequences, neither tokens' worth nor sampling.
//
// Source: "SpecInfer" (Miao et al., 2023) for verifying a tree at once; that a batch's token may belong to several
// sequences is llama.cpp's (examples/speculative).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/decoder.h"
#include "llama/model/model.h"
#include "speculation/trees/draft_tree.h"

namespace luce::llama {

class TreeBranches {
public:
    // A tree that is being computed.
    struct Tree {
        LaneId lane{};
        Position begin = 0;
        speculation::DraftTree tree;
        std::vector<std::int32_t> sequences;  // of each leaf, and more that are the root's; the first is the lane's

        std::span<const std::int32_t> sequences_with(speculation::NodeIndex node) const;
    };

    // The model must outlive it.
    TreeBranches(const Model& model, std::int32_t n_lanes);

    // Leaves that a call's trees can have beside one each; 0: the model takes no trees.
    std::int32_t n_most() const { return n_most_; }
    // Most sequences of a token.
    std::int32_t n_token_ids() const { return 1 + n_spare_; }
    // Sequence ids are below this while trees are open.
    std::int32_t n_ids() const { return n_lanes_ + n_borrowed_; }
    std::int32_t n_borrowed() const { return n_borrowed_; }

    // Before the call: those of its slices that are trees. Errors: internal (too many branches).
    Result<void> open(std::span<const engine::Slice> slices);
    const Tree& tree_of(LaneId lane) const;  // REQUIRES: it has one

    // After it. `path`: what the lane keeps of its tree, as in Decoder::keep(). Errors: internal.
    Result<void> close(LaneId lane, std::span<const std::int32_t> path);
    // The call has failed: nobody keeps anything.
    void close_all();

private:
    void lend() const;
    Result<void> take_back(const Tree& tree, std::span<const std::int32_t> path);

    const Model& model_;
    std::int32_t n_lanes_;
    std::int32_t n_spare_ = 0;  // sequences that can be borrowed
    std::int32_t n_most_ = 0;
    std::int32_t n_borrowed_ = 0;
    std::vector<Tree> trees_;
};

}  // namespace luce::llama
