#include "engine/warm_up.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace luce::engine {
namespace {

constexpr double kMost_s = 0.6;
constexpr int kAttempts = 3;  // while other programs take the processor: those that start beside this one soon end
constexpr double kMostWithoutModel_s = 0.15;  // what is free is seldom wrong for long: little is lost by finding out
// The first calls are dearer: graphs are made, and weights come into caches. Where they take long that is little.
constexpr int kMostFirstCalls = 16;
constexpr double kStillFaster = 0.95;  // than the fastest before it
constexpr int kNoFaster = 3;           // calls in a row
constexpr double kLong_s = 0.01;
constexpr int kPlainCalls = 3;
// Of each width, of which the shortest counts: the first two make the graph, and keep it. Of very long ones one.
constexpr int kCalls = 4;
constexpr double kVeryLong_s = 0.04;
// Where calls take long so many of their time, within this: a wrong guess of what wide calls cost is dear there.
constexpr double kMostCalls = 24;
constexpr double kMostSlow_s = 2;
constexpr std::int32_t kNarrowing = 3;  // from a width to the next

class WarmUp {
public:
    WarmUp(Decoder& decoder, Speculator& speculator, const Clock& clock)
        : decoder_(decoder),
          speculator_(speculator),
          clock_(clock),
          started_s_(clock.now_s()),
          end_s_(started_s_ + (speculator.has_models() ? kMost_s : kMostWithoutModel_s)) {}

    // Returns whether there is time for more.
    bool with_lanes(std::int32_t n_lanes) {
        texts_.assign(static_cast<std::size_t>(n_lanes), Tokens(1, 0));
        for (std::size_t i = 0; i < texts_.size(); ++i) speculator_.begin(static_cast<LaneId>(i), texts_[i], 0);
        const bool has_time = measure();
        for (std::size_t i = 0; i < texts_.size(); ++i) {
            decoder_.forget(static_cast<LaneId>(i));
            speculator_.forget(static_cast<LaneId>(i));
        }
        return has_time;
    }

    const std::string& found() const { return found_; }

private:
    std::int32_t n_lanes() const { return static_cast<std::int32_t>(texts_.size()); }

    bool measure() {
        double fastest_s = std::numeric_limits<double>::infinity();
        for (int i = 0, n_no_faster = 0; i < kMostFirstCalls && n_no_faster < kNoFaster; ++i) {
            const std::optional<double> seconds = call(0);
            if (!seconds) return false;
            if (*seconds > kLong_s)
                end_s_ = std::max(end_s_, started_s_ + std::min(kMostCalls * *seconds, kMostSlow_s));
            if (*seconds > kLong_s) break;
            n_no_faster = *seconds > kStillFaster * fastest_s ? n_no_faster + 1 : 0;
            fastest_s = std::min(fastest_s, *seconds);
        }
        std::optional<double> plain_s;
        for (int i = 0; i < kPlainCalls; ++i) {
            const std::optional<double> seconds = call(0);
            if (!seconds) return false;
            tell(0, *seconds);
            plain_s = std::min(plain_s.value_or(*seconds), *seconds);
        }
        note(", " + std::to_string(n_lanes()) + (n_lanes() == 1 ? " lane " : " lanes "), *plain_s);
        if (clock_.now_s() >= end_s_) return false;
        if (const double draft_s = speculator_.warm_up_drafts(candidates()); draft_s > 0) note(", drafts ", draft_s);
        for (std::int32_t width = speculator_.n_most(); width > 0; width /= kNarrowing) {
            std::optional<double> least_s;
            for (int i = 0; i < kCalls; ++i) {
                const std::optional<double> seconds = call(width);
                if (!seconds) break;
                least_s = std::min(least_s.value_or(*seconds), *seconds);
                if (*seconds > kVeryLong_s) break;
            }
            if (!least_s) continue;  // narrower ones may fit
            tell(width, *least_s);
            note(" +" + std::to_string(width) + " ", *least_s);
        }
        // Wide calls that take longer than was guessed make plain ones look dearer, too, which is known better.
        for (int i = 0; i < kPlainCalls; ++i) tell(0, *plain_s);
        return clock_.now_s() < end_s_;
    }

    std::vector<Speculator::Candidate> candidates() const {
        std::vector<Speculator::Candidate> lanes;
        for (std::size_t i = 0; i < texts_.size(); ++i) {
            lanes.push_back({static_cast<LaneId>(i), texts_[i], speculator_.n_most(), speculator_.n_most()});
        }
        return lanes;
    }

    // Seconds of a call that verifies so many tokens in each lane; none: too long, too wide, or it failed.
    std::optional<double> call(std::int32_t width) {
        const DecoderLimits& limits = decoder_.limits();
        const std::int32_t n_tokens = n_lanes() * (1 + width);
        if (n_tokens > std::min({limits.n_ubatch, limits.n_batch, limits.n_logits})) return std::nullopt;
        const double started_s = clock_.now_s();
        if (started_s + least_s_per_token_.value_or(0) * n_tokens > end_s_) return std::nullopt;
        std::vector<Slice> slices;
        for (std::size_t i = 0; i < texts_.size(); ++i) {
            Tokens& text = texts_[i];
            text.resize(text.size() + static_cast<std::size_t>(width), text.back());
            const std::span<const Token> tokens = std::span(text).last(static_cast<std::size_t>(1 + width));
            const auto begin = static_cast<Position>(text.size() - tokens.size());
            slices.push_back({static_cast<LaneId>(i), begin, tokens, 1 + width});
        }
        if (const Result<void> decoded = decoder_.decode(slices); !decoded) return std::nullopt;
        const double seconds = clock_.now_s() - started_s;
        std::int32_t row = 0;
        for (std::size_t i = 0; i < texts_.size(); ++i) {
            const auto n_computed = static_cast<std::int32_t>(texts_[i].size());
            speculator_.follow(static_cast<LaneId>(i), texts_[i], n_computed, 1 + width, row, false);
            row += 1 + width;
            texts_[i].push_back(texts_[i].back());
        }
        least_s_per_token_ = std::min(least_s_per_token_.value_or(seconds / n_tokens), seconds / n_tokens);
        n_longest_ = static_cast<std::int32_t>(texts_.front().size());
        return seconds;
    }

    void tell(std::int32_t width, double seconds) {
        speculator_.warmed_up({n_lanes(), n_lanes() * (1 + width), n_longest_, seconds});
    }

    void note(const std::string& what, double seconds) {
        char text[32];
        std::snprintf(text, sizeof text, "%.2f", 1e3 * seconds);
        found_ += what + text;
    }

    Decoder& decoder_;
    Speculator& speculator_;
    const Clock& clock_;
    double started_s_;
    double end_s_;
    std::optional<double> least_s_per_token_;
    std::int32_t n_longest_ = 1;
    std::vector<Tokens> texts_;  // of each lane; the last token is the one to compute
    std::string found_;
};

}  // namespace

void warm_up(Decoder& decoder, Speculator& speculator, std::int32_t n_lanes, const Clock& clock) {
    bool is_believed = false;
    std::string found;
    const double until_s = clock.now_s() + kMostSlow_s;
    for (int attempt = 0; attempt < kAttempts && !is_believed && clock.now_s() < until_s; ++attempt) {
        WarmUp measured(decoder, speculator, clock);
        bool has_time = measured.with_lanes(1);
        for (std::int32_t n = n_lanes; n > 1 && has_time; n /= 2) has_time = measured.with_lanes(n);
        found = measured.found();
        is_believed = !decoder.met_contention();
        if (!is_believed) speculator.forget_costs();
    }
    if (found.empty()) return;
    log_debug(std::string(is_believed ? "" : "not believed, since other programs want these cores: ") +
              "milliseconds of a call, and with so many drafted tokens a lane" + found);
}

}  // namespace luce::engine
