// SliceSizer: how many prompt tokens one step may take, so that running lanes never wait long. Pure: durations go in,
// a size comes out. It keeps what a call and each of its tokens cost lately: that grows with the context and differs
// between machines by a factor of a thousand, and a call that has weights brought from the host costs as much for ten
// tokens as for a thousand.
#pragma once

#include <cstdint>

namespace luce::engine {

class SliceSizer {
public:
    // A slice beside running lanes should take about this long. Those without listeners, as many as a device is given
    // at once, may take longer: fewer, larger slices cost less in all, and commands are still answered between them.
    static constexpr double kSharedTarget_s = 0.25;
    static constexpr double kAloneTarget_s = 1.0;
    static constexpr std::int32_t kMinTokens = 16;

    explicit SliceSizer(std::int32_t max_tokens, int n_at_once = 1) : max_tokens_(max_tokens), n_at_once_(n_at_once) {}

    // The next slice's size, 1 <= n <= max_tokens.
    std::int32_t next(bool lanes_are_waiting) const;

    // A call with tokens of prompts that computed n_tokens took seconds; 0: that is not known.
    void observe(std::int32_t n_tokens, double seconds);

    double call_price_s() const { return call_price_s_; }
    double token_price_s() const { return token_price_s_; }

private:
    // Of calls, newer ones weigh more. Their tokens and seconds, the squares and products.
    struct Means {
        double n = 0, s = 0, nn = 0, ns = 0;
    };

    std::int32_t max_tokens_;
    int n_at_once_;
    std::int32_t largest_seen_ = 0;
    Means means_;
    double call_price_s_ = 0;
    double token_price_s_ = 0;  // 0: nothing measured yet
};

}  // namespace luce::engine
