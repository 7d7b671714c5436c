// tree_draft: the draft of a source that names several tokens a place. Joins DraftTree, which knows no lanes, with what
// sources are asked and answer.
#pragma once

#include <span>
#include <vector>

#include "speculation/draft_source.h"
#include "speculation/trees/draft_tree.h"

namespace luce::speculation {

// The best tree of at most ask.n_most tokens with at most ask.n_leaves ends. REQUIRES: no more places than
// ask.n_deepest.
Draft tree_draft(const DraftAsk& ask, std::span<const std::vector<Candidate>> places);

}  // namespace luce::speculation
