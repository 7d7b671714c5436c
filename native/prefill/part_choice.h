// PartChoice: which parts of a prompt are read, by how much its pages matter to the prompt's end. Pure; knows no model.
//
// Whole pages are chosen, the best first, until the budget is spent (speculative prefill, arXiv 2502.02789, with the
// scores of RESIDENCY's study in place of attention's mass). What must be read counts in the budget. Stretches that
// make sense only as a whole (a block of code) are chosen as one, by their best page.
#pragma once

#include <span>
#include <vector>

#include "base/token.h"

namespace luce::prefill {

inline constexpr Position kChunk = 64;  // tokens that are chosen together: a page of memory

struct PartRules {
    Position begin = 0;              // what stands before has been decided
    Position n_budget = 0;           // tokens from there on; more are read where more must be
    std::vector<PositionSpan> keep;  // read whatever it says
    std::vector<PositionSpan>
        blocks;  // each read whole or not at all, if it takes no more than a quarter of the budget
};

// Of a text of n tokens, from rules.begin on; as joined() gives them. `scores`: of the text's pages, from the first on;
// pages without one matter least. The first page and the last ones are read always.
std::vector<PositionSpan> choose_parts(Position n, std::span<const float> scores, const PartRules& rules);

}  // namespace luce::prefill
