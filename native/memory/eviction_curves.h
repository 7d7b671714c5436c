// ReuseCurves: how likely a conversation is asked for again at each idle age, learnt while the daemon runs, and what
// keeping its pages is worth by that. Numbers only; knows neither pages nor conversations.
//
// A page is worth as much as the chance that its conversation comes back while the page is kept, divided by how long
// that keeps it: worth(age) = max over h of P(return within h | idle for age) / E[time kept until return or h]: hits
// a page and second. (The index of Gittins, 1979; "hit density" in Beckmann, Chen, Cidon: LHD, NSDI 2018.) Least
// recently used assumes that the longer idle, the less likely; an agent whose tool runs for some seconds is MORE likely
// to be back soon than one that has just been answered.
//
// Learnt for each pace (mean gap between a conversation's requests) apart: paces differ more than anything else known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace luce::memory {

// Of a conversation: left by its own text (an edit, a retry), no second request yet, mean gaps of up to 5, 10, 20, 40
// s, longer ones.
enum class Pace : std::uint8_t { departed, unknown, up_to_5s, up_to_10s, up_to_20s, up_to_40s, longer };
inline constexpr std::size_t kPaces = 7;

class ReuseCurves {
public:
    ReuseCurves();

    static constexpr std::size_t kPerOctave = 4;              // idle ages in steps of 19 %: finer only adds noise
    static constexpr std::size_t kBuckets = 16 * kPerOctave;  // the last one starts at 8 h
    static std::size_t bucket_of(double age_s);
    static Pace pace_of(float log2_mean_gap_s);

    // A conversation was idle through all of the bucket or came back within it; those who came back count as both.
    void count_reached(Pace pace, std::size_t bucket);
    void count_returned(Pace pace, std::size_t bucket);

    // Bring worth() up to date with what was counted: some 50 us.
    void relearn();

    // Expected hits per page and second of keeping.
    double worth(Pace pace, double age_s) const;

    // Idle for longer than this, nearly nobody ever came back.
    double old_age_s() const { return old_age_s_; }

private:
    // Of the conversations that were idle up to a bucket: how many there were, how many came back within it.
    struct Curve {
        std::array<double, kBuckets> reached{};
        std::array<double, kBuckets> returned{};
    };

    double quantile_of_gaps_s(double quantile) const;

    Curve all_;
    std::array<Curve, kPaces> of_pace_;
    std::array<std::array<double, kBuckets + 1>, kPaces> worth_{};
    double old_age_s_ = 0;
};

}  // namespace luce::memory
