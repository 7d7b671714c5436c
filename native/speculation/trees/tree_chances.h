// What a drafted tree's tokens are worth: the chance of each that it and all on its way from the root are right, and
// what can be learnt when it is known what came. Knows claims and verdicts, neither costs nor models.
//
// The children of a node are tried one after the other, likeliest first: the second is right if the first is wrong and
// the second right then, of which its claim divided by what the first left over says something. So each has a chance
// of its own to be learnt, none of which depends on how sure the others are, and those of a node never exceed 1
// together. First children are tokens as a chain has them and share its AcceptanceEstimator; the others have one of
// their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "speculation/controller/acceptance_estimator.h"
#include "speculation/draft_source.h"

namespace luce::speculation {

// A token of a tree that was tried, and whether it came.
struct TreeVerdict {
    std::size_t node = 0;  // index in the draft
    bool was_right = false;
};

// What the tokens that came say of a tree: the children of each node on their way, up to the right one. REQUIRES:
// as many parents as tokens.
std::vector<TreeVerdict> verdicts_of(std::span<const Token> drafted, std::span<const std::int32_t> parents,
                                     std::span<const Token> got);

class TreeChances {
public:
    // REQUIRES in all calls: lane and source within these numbers; as many confidences as parents.
    TreeChances(std::size_t n_lanes, std::size_t n_sources) : others_(n_lanes, n_sources) {}

    // By node. Never larger than its parent's.
    std::vector<float> chances(const AcceptanceEstimator& first, LaneId lane, SourceIndex source,
                               std::span<const float> confidence, std::span<const std::int32_t> parents) const;

    void observe(AcceptanceEstimator& first, LaneId lane, SourceIndex source, std::span<const float> confidence,
                 std::span<const std::int32_t> parents, std::span<const TreeVerdict> verdicts);

    void fade(LaneId lane) { others_.fade(lane); }
    void begin(LaneId lane) { others_.begin(lane); }

private:
    AcceptanceEstimator others_;  // of children that are tried after another one
};

// The indices of the n likeliest nodes, likeliest first; parents come before their children.
std::vector<std::size_t> likeliest_nodes(std::span<const float> chances, std::size_t n);

// A tree's likeliest way from its root, at most n tokens of it.
std::vector<std::size_t> likeliest_chain(std::span<const float> chances, std::span<const std::int32_t> parents,
                                         std::size_t n);

}  // namespace luce::speculation
