#include "speculation/trees/tree_drafts.h"

namespace luce::speculation {

Draft tree_draft(const DraftAsk& ask, std::span<const std::vector<Candidate>> places) {
    const TreeLimits limits{static_cast<std::size_t>(ask.n_most), static_cast<std::size_t>(ask.n_leaves)};
    const auto tree = DraftTree::best_first(ask.text.back(), places, limits);
    Draft draft;
    draft.lane = ask.lane;
    for (const TreeNode& node : tree.nodes().subspan(1)) {
        draft.tokens.push_back(node.token);
        draft.confidence.push_back(static_cast<float>(node.probability / tree.nodes()[node.parent].probability));
        draft.parents.push_back(static_cast<std::int32_t>(node.parent) - 1);
    }
    return draft;
}

}  // namespace luce::speculation
