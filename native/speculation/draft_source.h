// DraftSource: who proposes tokens for the target to verify. `llama/` implements it with draft models (DFlash, MTP
// heads, EAGLE-3, a small model); ngram_lookup needs none. A source is never trusted: what it proposes is verified.
//
// All calls come from the one thread that runs the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"

namespace luce::speculation {

// The place of a source in the list that the engine was given, cheapest first.
using SourceIndex = std::size_t;

struct SourceTraits {
    std::string name;         // for people and counters: "ngram", "dflash", "mtp", …
    std::int32_t n_most = 0;  // tokens that it can propose at once
    bool is_free = false;     // needs no model: asking costs next to nothing
    bool can_branch = false;  // names alternatives where it is asked for more than one leaf; n_most counts them all
};

// A lane that wants a draft: its text ends with a token that the target has not seen yet; all before it, it has.
struct DraftAsk {
    LaneId lane{};
    std::span<const Token> text;
    std::int32_t n_most = 0;    // >= 1
    std::int32_t n_leaves = 1;  // most ends of the draft; 1: a chain is wanted
    // Most tokens one after the other: >= 1; of a chain no less than n_most.
    std::int32_t n_deepest = std::numeric_limits<std::int32_t>::max();
};

// Tokens that may follow the lane's text, as a chain or as a tree; empty: nothing to propose.
struct Draft {
    LaneId lane{};
    Tokens tokens;
    // For each token the source's own probability that it is the next one, given that those before it are: 0 … 1. Not
    // calibrated: the controller learns what it is worth.
    std::vector<float> confidence;
    // Of a tree: for each token the index of the one before it, which is a smaller one; -1: the text's last one.
    // Likelier ones first, so that the first n are the best tree of n. Empty: a chain.
    std::vector<std::int32_t> parents = {};
};

// Where tokens of a text stood in the target's batch: side by side, or where a tree's branch led through it.
class BatchRows {
public:
    BatchRows(std::int32_t first, std::span<const std::int32_t> offsets = {}) : first_(first), offsets_(offsets) {}
    std::size_t operator[](std::size_t i) const {
        return static_cast<std::size_t>(first_) + (offsets_.empty() ? i : static_cast<std::size_t>(offsets_[i]));
    }

private:
    std::int32_t first_;
    std::span<const std::int32_t> offsets_;
};

class DraftSource {
public:
    virtual ~DraftSource() = default;

    virtual const SourceTraits& traits() const = 0;

    // Computes what follow() put off of these lanes, which draft() would begin with, and says how many positions that
    // was. Errors: as draft().
    virtual Result<std::int32_t> prepare(std::span<const DraftAsk> /*asks*/) { return 0; }

    // Appends one draft for each ask, in their order. Lanes are asked together, so that a model drafts them in one
    // batch. Errors: internal, out_of_memory; nothing has been appended then, and the source may be asked again.
    virtual Result<void> draft(std::span<const DraftAsk> asks, std::vector<Draft>& drafts) = 0;

    // The target has computed the lane's text up to n_computed; its last n_new tokens in this call. Called after every
    // target call for each lane in it, in the order of the call's slices, after verification: rejected tokens are not
    // in the text. `rows`: where in the target's batch the n_new tokens stood.
    virtual void follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                        BatchRows rows) = 0;

    // The same of tokens that were generated where no draft is going to be asked for soon: a source that would have to
    // compute something may leave them out. Its drafts of this text are worse then.
    virtual void skip(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                      BatchRows rows) {
        follow(lane, text, n_computed, n_new, rows);
    }

    // Whether skip() saves anything: of a prompt, too, in whose answer no draft will be asked for.
    virtual bool can_skip() const { return false; }

    // The lane's text ends here, and of its last n_new tokens, which follow() was told of, none was ever drafted from:
    // what they still have to compute may be left out as well.
    virtual void leave_out(LaneId, std::span<const Token> /*text*/, std::int32_t /*n_computed*/,
                           std::int32_t /*n_new*/) {}

    // The target computes its next call: what can be done of the work that follow() left costs less now than later.
    virtual void overlapped() {}

    // The lane's text is another one now: `text` of which n_computed tokens were put back from memory, or none.
    virtual void begin(LaneId lane, std::span<const Token> text, std::int32_t n_computed) = 0;

    // A text has ended: what comes after n_prompt tokens was generated.
    virtual void answered(std::span<const Token> /*text*/, std::int32_t /*n_prompt*/) {}

    // The lane is empty.
    virtual void forget(LaneId lane) = 0;
};

}  // namespace luce::speculation
