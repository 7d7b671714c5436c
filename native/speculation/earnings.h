// Earnings: what speculation has really brought here, in seconds saved against plain decoding, drafts and all that they
// entail counted. It may lose what it has earned and a small share of all time, and no more: whatever is believed of
// drafts and costs, decoding is no slower than plain by more than that share and what was granted at the start. Who has
// earned little can only afford short drafts, whose success pays for longer ones.
#pragma once

#include <algorithm>

namespace luce::speculation {

class Earnings {
public:
    static constexpr double kShare = 0.006;  // of all time

    void grant(double seconds) { balance_s_ += seconds; }

    // A step took so long and saved so much (below 0: lost). What is beyond most_s is not put by: long success must not
    // pay for a long failure.
    void book(double spent_s, double saved_s, double most_s) {
        balance_s_ = std::min(balance_s_ + saved_s + kShare * spent_s, std::max(most_s, 0.0));
    }

    // What was declined would have saved so much. That is as good a sign as any, but costs nothing: no more than
    // `least_s` of debt comes of it.
    void book_declined(double saved_s, double least_s, double most_s) {
        if (saved_s < 0) balance_s_ = std::max(balance_s_ + saved_s, std::min(balance_s_, least_s));
        if (saved_s > 0) balance_s_ = std::min(balance_s_ + saved_s, std::max(balance_s_, most_s));
    }

    bool covers(double risk_s) const { return risk_s <= balance_s_; }

private:
    double balance_s_ = 0;
};

}  // namespace luce::speculation
