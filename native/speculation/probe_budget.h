// ProbeBudget: how much time may go into finding out. A small share of all time is put by, up to a few steps' worth,
// and every trial that is expected to lose time takes what it is expected to lose; so trials together never cost more
// than that share and what was granted at the start.
#pragma once

#include <algorithm>

namespace luce::speculation {

class ProbeBudget {
public:
    static constexpr double kShare = 0.004;  // of all time

    void grant(double seconds) { credit_s_ += seconds; }

    void earn(double spent_s, double most_s) {
        if (credit_s_ < most_s) credit_s_ = std::min(most_s, credit_s_ + kShare * spent_s);
    }

    // Whether it could be afforded; then it is paid.
    bool take(double seconds) {
        if (!(seconds <= credit_s_)) return false;
        credit_s_ -= std::max(seconds, 0.0);
        return true;
    }

    // A trial cost so much more than what was taken for it (or less: below 0).
    void settle(double seconds) { credit_s_ -= seconds; }

private:
    double credit_s_ = 0;
};

}  // namespace luce::speculation
