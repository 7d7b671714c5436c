// ExplorationBudget: how much time speculation may lose, in seconds: a small share of all time and what was granted at
// the start, whatever is believed of drafts and costs. A step that pays by far as things are known asks for none
// (SpeculationController::covers); what it loses all the same is booked here.
//
// What has really been saved against plain decoding is put by, up to a bound, and a step may risk no more than that:
// who has saved little can only afford short drafts, whose success pays for longer ones. Trials, which are expected to
// lose time so that something is known, are paid from a share of their own: success must not pay for endless trials.
#pragma once

#include <algorithm>

namespace luce::speculation {

class ExplorationBudget {
public:
    static constexpr double kRiskShare = 0.010;  // of all time
    static constexpr double kTrialShare = 0.004;

    void grant(double seconds) {
        saved_s_ += seconds;
        trials_s_ += seconds;
    }

    // A step took so long and saved so much (below 0: lost).
    void book(double spent_s, double saved_s, double most_s) {
        saved_s_ = std::min(saved_s_ + saved_s + kRiskShare * spent_s, std::max(most_s, 0.0));
    }
    // Into another text: no more than that.
    void carry(double most_s) { saved_s_ = std::min(saved_s_, most_s); }
    bool covers(double risk_s) const { return risk_s <= saved_s_; }

    void earn_trials(double spent_s, double most_s) {
        if (trials_s_ < most_s) trials_s_ = std::min(most_s, trials_s_ + kTrialShare * spent_s);
    }
    // Whether a trial that is expected to lose so much can be afforded; then it is paid.
    bool take(double seconds) {
        if (!(seconds <= trials_s_)) return false;
        trials_s_ -= std::max(seconds, 0.0);
        return true;
    }
    // A trial cost so much more than what was taken for it (or less: below 0).
    void settle(double seconds) { trials_s_ -= seconds; }

private:
    double saved_s_ = 0;
    double trials_s_ = 0;
};

}  // namespace luce::speculation
