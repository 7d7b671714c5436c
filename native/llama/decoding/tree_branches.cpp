#include "llama/decoding/tree_branches.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include <llama.h>

#include "llama-hparams.h"
#include "llama-model.h"
#include "llama/kv_cache/kv_cells.h"
#include "llama/kv_cache/memory_parts.h"
#include "llama/model/sequence.h"

namespace luce::llama {
namespace {

// The first position that one at `position` sees through a window. What lies before it libllama may overwrite with the
// next tokens as long as it is one sequence's alone.
Position first_in_window(const llama_hparams& hparams, Position position) {
    Position first = position;
    while (first > 0 && !llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, first - 1, position)) --first;
    return first;
}

struct Caches {
    KvCells paged;
    KvCells window;  // none where the model has no window
};

Caches caches_of(const Model& model, std::int32_t n_lanes) {
    const MemoryParts parts = memory_parts(model.context(), model.architecture(), n_lanes);
    Caches caches;
    if (parts.paged != nullptr) caches.paged = KvCells(*parts.paged, false);
    if (parts.window != nullptr) caches.window = KvCells(*parts.window, false);
    return caches;
}

}  // namespace

std::span<const std::int32_t> TreeBranches::Tree::sequences_with(speculation::NodeIndex node) const {
    if (node == 0) return sequences;
    const auto [first, end] = tree.sequences_with(node);
    return std::span(sequences).subspan(first, end - first);
}

TreeBranches::TreeBranches(const Model& model, std::int32_t n_lanes) : model_(model), n_lanes_(n_lanes) {
    if (model.info().n_tree == 0) return;
    const MemoryParts parts = memory_parts(model.context(), model.architecture(), n_lanes);
    if (parts.refusal || parts.recurrent != nullptr) return;
    // libllama asks that a call may have as many rows of logits as there are sequences.
    n_spare_ = std::max(0, std::min(holder_id(), model.info().n_logits) - n_lanes);
    // More ends than that no tree has.
    n_most_ = std::min(n_spare_, n_lanes * (model.info().n_tree - 1));
}

Result<void> TreeBranches::open(std::span<const engine::Slice> slices) {
    for (const engine::Slice& slice : slices) {
        if (slice.parents.empty()) continue;
        auto tree = speculation::DraftTree::of(slice.tokens, slice.parents);
        const auto n_branches = static_cast<std::int32_t>(tree.leaves().size()) - 1;
        Tree& opened = trees_.emplace_back(Tree{slice.lane, slice.begin, std::move(tree), {sequence(slice.lane)}});
        for (std::int32_t i = 0; i < n_branches; ++i) opened.sequences.push_back(n_lanes_ + n_borrowed_++);
    }
    if (n_borrowed_ > n_most_) {
        trees_.clear();
        n_borrowed_ = 0;
        return Error{ErrorCode::internal, "trees with more than " + std::to_string(n_most_) + " branches in a call"};
    }
    if (trees_.empty()) return {};
    // With another number of sequences libllama would build another graph, so these are few different numbers.
    const auto n_rounded = static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(n_borrowed_)));
    while (n_borrowed_ < std::min(n_rounded, n_spare_)) trees_.front().sequences.push_back(n_lanes_ + n_borrowed_++);
    lend();
    return {};
}

void TreeBranches::lend() const {
    Caches caches = caches_of(model_, n_lanes_);
    for (const Tree& tree : trees_) {
        const auto branches = std::span(tree.sequences).subspan(1);
        caches.paged.lend(sequence(tree.lane), branches, 0);
        if (caches.window.size() == 0) continue;
        caches.window.lend(sequence(tree.lane), branches, first_in_window(model_.model()->hparams, tree.begin));
    }
}

const TreeBranches::Tree& TreeBranches::tree_of(LaneId lane) const {
    return *std::find_if(trees_.begin(), trees_.end(), [lane](const Tree& tree) { return tree.lane == lane; });
}

Result<void> TreeBranches::close(LaneId lane, std::span<const std::int32_t> path) {
    const auto found =
        std::find_if(trees_.begin(), trees_.end(), [lane](const Tree& tree) { return tree.lane == lane; });
    if (found == trees_.end()) {
        return Error{ErrorCode::internal, "lane " + std::to_string(sequence(lane)) + " has no tree in this call"};
    }
    const Result<void> taken = take_back(*found, path);
    trees_.erase(found);
    if (trees_.empty()) n_borrowed_ = 0;
    return taken;
}

void TreeBranches::close_all() {
    // Nothing is looked for, so nothing can be missing.
    for (const Tree& tree : trees_) (void)take_back(tree, {});
    trees_.clear();
    n_borrowed_ = 0;
}

Result<void> TreeBranches::take_back(const Tree& tree, std::span<const std::int32_t> path) {
    const auto branches = std::span(tree.sequences).subspan(1);
    const auto end = tree.begin + static_cast<Position>(path.size());
    const auto last = static_cast<std::size_t>(path.empty() ? 0 : path.back());
    const std::int32_t along = tree.sequences_with(last).front();
    Result<void> result;
    Caches caches = caches_of(model_, n_lanes_);
    for (KvCells* cells : {&caches.paged, &caches.window}) {
        const Result<void> taken = cells->take_back(sequence(tree.lane), branches, tree.begin, along, end);
        if (!taken) result = taken;
    }
    return result;
}

}  // namespace luce::llama
