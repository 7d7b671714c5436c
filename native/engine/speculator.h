// Speculator: the drafts of the lanes from step to step: asks the sources that the controller wants asked, holds what
// each lane verifies, and tells controller and sources what came of it. Knows lanes and texts, neither the model nor
// the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/token.h"
#include "engine/request.h"
#include "speculation/controller/speculation_controller.h"
#include "speculation/draft_source.h"

namespace luce::engine {

struct SpeculationConfig {
    std::vector<std::unique_ptr<speculation::DraftSource>> sources;  // cheapest first
    std::int32_t n_most = 0;                                         // drafted tokens a lane, one after the other
    std::int32_t n_tree = 0;      // drafted tokens a lane in all branches of a tree; 0: chains only
    std::int32_t n_branches = 0;  // DecoderLimits::n_branches, which the lanes of a step share
    bool is_adaptive = true;
    bool wants_equal_widths = false;  // see ControllerConfig
};

class Speculator {
public:
    Speculator(SpeculationConfig config, std::int32_t n_lanes, const Clock& clock);
    ~Speculator();

    bool has_models() const;                         // among its sources: drafts that cost something
    std::int32_t n_most() const { return n_most_; }  // drafted tokens one after the other
    std::string description() const;                 // the sources' names: "ngram+dflash"

    // A lane that decodes in the next step: its text's last token is the one to compute.
    struct Candidate {
        LaneId lane{};
        std::span<const Token> text;
        std::int32_t n_most = 0;     // drafted tokens that it can take
        std::int32_t n_deepest = 0;  // of them one after the other
        // Whether the request ends with the token: nothing behind it is of use. Unset: with none.
        std::function<bool(Token)> ends_with = {};
    };

    // Before anything is served: what a call took that was made to find that out, and what it takes to draft for these
    // lanes, whose texts are nobody's. Returns how long drafting took, of all sources that are not free.
    void warmed_up(const speculation::StepCost& cost) { controller_.observe_warmup_step(cost); }
    double warm_up_drafts(std::span<const Candidate> lanes);
    void forget_costs() { controller_.forget_costs(); }  // nothing of that was measured

    // Decide what each of them verifies in the next step. REQUIRES: each has been begun.
    void propose(std::span<const Candidate> lanes);
    void withdraw();  // nobody verifies anything in the next step

    // The lane's next token and what is drafted after it; empty: it has no part in the next step's speculation.
    std::span<const Token> proposed(LaneId lane) const;
    // If that is a tree, the parents of its tokens as in Slice; else none.
    std::span<const std::int32_t> parents(LaneId lane) const;

    // What a step of decoding lanes and nothing else took.
    void measured(const speculation::StepCost& cost) { controller_.observe_step(cost); }

    // What came of the step for the lane: the tokens that it got, of which the draft had foreseen n_matched; n_seen of
    // the drafted ones were looked at, where its request ended before. `seconds`: the lane's share of what the call
    // took.
    Speculation judged(LaneId lane, std::span<const Token> got, std::int32_t n_matched, std::int32_t n_seen,
                       double seconds);

    // DraftSource's calls, to all sources; `is_answer`: the tokens were generated.
    void follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                speculation::BatchRows rows, bool is_answer);
    void overlapped();
    void begin(LaneId lane, std::span<const Token> text, std::int32_t n_computed);
    // The lane's text ends here, with n_answer computed tokens of its answer: drafters that were not asked in it need
    // not read them. Before what is computed of it is kept.
    void end(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_answer);
    void forget(LaneId lane);

private:
    struct Source {
        std::unique_ptr<speculation::DraftSource> drafts;
        int n_failures = 0;           // in a row
        double out_until_s = 0;       // by the clock: not asked before
        bool can_pay = true;          // as the lanes are now
        std::vector<bool> was_asked;  // by lane: in its text
        std::vector<bool> is_unread;  // by lane: reading its text is not worth it
    };
    struct Plan {
        Tokens tokens;                      // the next one, the drafted ones, padding up to the others' width
        std::vector<std::int32_t> parents;  // of a tree
        std::int32_t width = 0;
        std::optional<std::size_t> proposal;  // that the drafted ones are of
        double draft_s = 0;                   // the lane's share of what drafting took in this step
    };

    speculation::DraftAsk ask_for(const Candidate& lane, speculation::SourceIndex source, std::int32_t n_tokens,
                                  std::size_t n_lanes) const;
    void ask(speculation::SourceIndex source, std::span<const speculation::DraftAsk> asks,
             std::span<const Candidate> lanes);
    void fail(Source& source, const Error& error, double seconds, std::span<const speculation::DraftAsk> asks);
    void judge(std::size_t proposal, std::span<const Token> got);
    void choose(std::span<const Candidate> lanes);
    void note_branches();
    void pad(std::span<const Candidate> lanes);
    void judge_unused(LaneId lane, std::span<const Token> got);
    Plan& at(LaneId lane) { return plans_[static_cast<std::size_t>(lane)]; }

    const Clock& clock_;
    std::int32_t n_most_;
    std::int32_t n_tree_;
    std::int32_t n_branches_;
    bool wants_equal_widths_;
    bool has_noted_branches_ = false;
    int n_without_branches_ = 0;  // steps in a row
    std::vector<Source> sources_;
    speculation::SpeculationController controller_;
    std::vector<Plan> plans_;  // of each lane
    // Of the step that is being decided.
    std::vector<speculation::Draft> drafts_;
    std::vector<speculation::Proposal> proposals_;
};

}  // namespace luce::engine
