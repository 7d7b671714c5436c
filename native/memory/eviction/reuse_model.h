// ReuseModel: how likely a conversation is asked for again at each idle age, learnt while the daemon runs, and what
// keeping its pages is worth by that. Numbers only; knows neither pages nor conversations.
//
// A page is worth as much as the chance that its conversation comes back while the page is kept, divided by how long
// that keeps it: priority(age) = max over h of P(return within h | idle for age) / E[time kept until return or h]: hits
// a page and second. (The index of Gittins, 1979; "hit density" in Beckmann, Chen, Cidon: LHD, NSDI 2018.) Least
// recently used assumes that the longer idle, the less likely; an agent whose tool runs for some seconds is MORE likely
// to be back soon than one that has just been answered.
//
// Learnt for each interval (mean gap between a conversation's requests) apart: intervals differ more than anything
// else known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace luce::memory {

// Of a conversation: left by its own text (an edit, a retry), no second request yet, mean gaps of up to 5, 10, 20, 40
// s, longer ones.
enum class ReuseInterval : std::uint8_t { departed, unknown, up_to_5s, up_to_10s, up_to_20s, up_to_40s, longer };
inline constexpr std::size_t kIntervals = 7;

class ReuseModel {
public:
    ReuseModel();

    static constexpr std::size_t kPerOctave = 4;              // idle ages in steps of 19 %: finer only adds noise
    static constexpr std::size_t kBuckets = 16 * kPerOctave;  // the last one starts at 8 h
    static std::size_t bucket_of(double age_s);
    static ReuseInterval interval_of(float log2_mean_gap_s);

    // A conversation was idle through all of the bucket or came back within it; those who came back count as both.
    void count_reached(ReuseInterval interval, std::size_t bucket);
    void count_returned(ReuseInterval interval, std::size_t bucket);

    // Bring what follows up to date with what was counted: some 30 us.
    void relearn();

    // Expected hits per page and second of keeping, at the start of each bucket and at the end of the last.
    using Priorities = std::array<float, kBuckets + 1>;
    const Priorities& priorities(ReuseInterval interval) const {
        return priorities_[static_cast<std::size_t>(interval)];
    }

    static double priority_at(const Priorities& priorities, double age_s);
    double priority(ReuseInterval interval, double age_s) const { return priority_at(priorities(interval), age_s); }

    // Idle for longer than this, nearly nobody ever came back.
    double old_age_s() const { return old_age_s_; }

private:
    // Of the conversations that were idle up to a bucket: how many there were, how many came back within it.
    struct Curve {
        std::array<double, kBuckets> reached{};
        std::array<double, kBuckets> returned{};
    };

    using Chances = std::array<double, kBuckets>;  // of a return within a bucket, for those who were idle up to it

    double quantile_of_gaps_s(double quantile) const;
    Priorities priorities(const Chances& chances) const;

    Curve all_;
    std::array<Curve, kIntervals> of_interval_;
    std::array<Priorities, kIntervals> priorities_{};
    double old_age_s_ = 0;
    std::size_t n_young_ = kBuckets;  // buckets below that age, and the next few
};

}  // namespace luce::memory
