// A machine and texts made of arithmetic, on which a controller (or a fixed setting) decodes: what calls and drafts
// cost, what sources propose at each place of each text, and what of it is right. All of it follows from the seed and
// the place, so that every way of decoding meets the same texts. What is counted is the true cost; the controller is
// told a noisy one.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "speculation/controller/speculation_controller.h"

namespace luce::tests {

enum class CostShape { flat, steep, stepped, experts };
enum class Kind { copying, tools, code, prose, noise };

inline constexpr std::int32_t kBlock = 15;  // tokens of a draft

struct WorldTraits {
    std::string name;
    std::uint64_t seed = 1;
    std::int32_t n_lanes = 1;
    CostShape shape = CostShape::steep;
    double plain_s = 0.0015;
    double draft_share = 0.7;       // of a plain step for one lane
    double draft_lane_share = 0.1;  // each further lane's, of that
    double token_share = 0;         // of a full draft's cost: what goes with the tokens asked for
    double attention = 0;           // share of a plain step for each 1000 tokens of context
    double draft_attention = 0;     // of a draft, for each 1000 tokens of a lane's
    double change_share = 0;        // of a plain step: what a plain call costs more behind one that verified
    double noise = 0.05;
    double outliers = 0.005;
    std::vector<Kind> kinds;       // what the texts are made of, in turn
    std::int32_t n_stretch = 700;  // tokens of one kind
    std::int32_t n_text = 1400;    // tokens of one text
    std::int32_t n_prompt = 300;
    bool are_equal = false;
    std::int32_t n_rollback = kBlock;  // tokens that can be taken back; beyond, what was right is computed again
    bool judges_all = true;            // verdicts on proposals that were not taken, too
};

// A build that checks memory is thirty times as slow, and has no numbers of the allocator's.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kIsSlow = true;
#else
inline constexpr bool kIsSlow = false;
#endif

// Random numbers that depend on where they are asked for.
class Dice {
public:
    Dice(std::uint64_t a, std::uint64_t b, std::uint64_t c)
        : state_(a * 0x9E3779B97F4A7C15U + b * 0xBF58476D1CE4E5B9U + c) {
        next();
    }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    double normal() {
        const double u = std::max(uniform(), 1e-12);
        return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * uniform());
    }

private:
    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        return z ^ (z >> 31);
    }
    std::uint64_t state_;
};

inline constexpr speculation::SourceIndex kNgram = 0;
inline constexpr speculation::SourceIndex kBlockDraft = 1;

// A controller for such lanes, with both sources.
inline speculation::ControllerConfig config_of(std::int32_t n_lanes, bool are_equal = false) {
    speculation::ControllerConfig config;
    config.n_lanes = n_lanes;
    config.n_most = kBlock;
    config.wants_equal_widths = are_equal;
    config.sources = {{"ngram", kBlock, true}, {"block", kBlock, false}};
    return config;
}

struct SampleDraft {
    std::vector<float> confidence;
    std::int32_t n_right = 0;
};

class World {
public:
    explicit World(WorldTraits traits) : t(std::move(traits)) {}

    // What a call costs that verifies so many tokens beside the lanes' own.
    double call_s(std::int32_t n_lanes, std::int32_t n_drafted, std::int32_t n_all_text) const {
        const double tokens = n_lanes + n_drafted;
        const double work = weights(tokens) / weights(1);
        const double read = t.attention * n_all_text / 1000.0;
        const double of_attention = t.shape == CostShape::flat ? 1 : 1 + 0.6 * n_drafted / n_lanes;
        return t.plain_s * (work + read * of_attention);
    }

    double draft_s(std::int32_t n_lanes, std::int32_t n_tokens, std::int32_t n_text = 0) const {
        const double each = static_cast<double>(n_tokens) / n_lanes / kBlock;
        const double read = 1 + t.draft_attention * n_text / 1000.0;
        const double work = (1 + t.draft_lane_share * (n_lanes - 1)) * (1 - t.token_share * (1 - each));
        return t.plain_s * t.draft_share * work * read;
    }

    double noisy(double seconds, std::uint64_t step, std::uint64_t what) const {
        Dice dice(t.seed ^ 0xABCDU, step, what);
        const double factor = std::exp(t.noise * dice.normal());
        return seconds * (dice.uniform() < t.outliers ? 10 : 1) * factor;
    }

    Kind kind_at(std::int32_t lane, std::int32_t place) const {
        return t.kinds[static_cast<std::size_t>(place / t.n_stretch + lane) % t.kinds.size()];
    }

    // Right often when copying and then for long; elsewhere it is seldom there and mostly wrong.
    SampleDraft ngram(std::int32_t lane, std::int32_t place) const {
        Dice dice(t.seed + 1, static_cast<std::uint64_t>(lane), static_cast<std::uint64_t>(place));
        static constexpr std::array<double, 5> kThere = {0.9, 0.5, 0.35, 0.2, 0.3};
        static constexpr std::array<double, 5> kRight = {0.965, 0.85, 0.5, 0.3, 0.02};
        const auto kind = static_cast<std::size_t>(kind_at(lane, place));
        if (dice.uniform() > kThere[kind]) return {};
        const double right = std::clamp(kRight[kind] + 0.1 * dice.normal() * (1 - kRight[kind]), 0.0, 0.99);
        const auto length = 1 + static_cast<std::int32_t>(dice.uniform() * kBlock * (kind == 0 ? 1.5 : 1));
        return sample(dice, std::min(length, kBlock), right, 0, 0.6);
    }

    SampleDraft block(std::int32_t lane, std::int32_t place, std::int32_t n_tokens) const {
        Dice dice(t.seed + 2, static_cast<std::uint64_t>(lane), static_cast<std::uint64_t>(place));
        static constexpr std::array<double, 5> kEase = {3.2, 2.6, 0.9, 0.1, -6};
        const double ease = kEase[static_cast<std::size_t>(kind_at(lane, place))] + 0.9 * dice.normal();
        return sample(dice, n_tokens, 1 / (1 + std::exp(-ease)), 0.12, -0.3);
    }

    const WorldTraits t;

private:
    // Chances fall along the draft; confidences are off by a bias and some noise.
    static SampleDraft sample(Dice& dice, std::int32_t length, double right, double decay, double bias) {
        SampleDraft draft;
        bool is_right = true;
        double logit = std::log(std::max(right, 1e-4) / (1 - std::min(right, 0.9999)));
        for (std::int32_t i = 0; i < length; ++i, logit -= decay) {
            const double claim = 0.8 * logit + bias + 0.5 * dice.normal();
            draft.confidence.push_back(static_cast<float>(1 / (1 + std::exp(-claim))));
            is_right = is_right && dice.uniform() < 1 / (1 + std::exp(-logit));
            if (is_right) ++draft.n_right;
        }
        return draft;
    }

    double weights(double tokens) const {
        switch (t.shape) {
            case CostShape::flat: return 1 + 0.015 * tokens;
            case CostShape::steep: return 1 + 0.17 * tokens;
            case CostShape::stepped: return 1 + 0.35 * std::ceil(tokens / 8) + 0.01 * tokens;
            case CostShape::experts: return 0.4 + 0.9 * std::pow(tokens, 0.7);
        }
        return 1;
    }
};

// What the daemon does before it serves: calls and drafts on short texts.
inline void warm_up(speculation::SpeculationController& controller, const World& world) {
    const std::int32_t n_lanes = world.t.n_lanes;
    std::uint64_t n_calls = 1 << 20;
    const auto tell = [&](std::int32_t width) {
        const double seconds = world.noisy(world.call_s(n_lanes, n_lanes * width, 0), n_calls++, 3);
        controller.observe_warmup_step({n_lanes, n_lanes * (1 + width), 1, seconds});
    };
    for (int i = 0; i < 3; ++i) tell(0);
    const double drafts_s = world.noisy(world.draft_s(n_lanes, n_lanes * kBlock), n_calls++, 3);
    controller.observe_warmup_draft(kBlockDraft, n_lanes, n_lanes * kBlock, drafts_s);
    for (std::int32_t width = kBlock; width > 0; width /= 2) tell(width);
    for (int i = 0; i < 3; ++i) tell(0);
}

struct Tally {
    double seconds = 0;
    std::int64_t n_tokens = 0;
    double s_per_token() const { return seconds / static_cast<double>(n_tokens); }
};

// Decodes in all lanes until they have so many tokens together; what is counted begins after n_start.
class Player {
public:
    explicit Player(const World& world) : world_(world), places_(static_cast<std::size_t>(world.t.n_lanes)) {}

    Tally with_gate(speculation::SpeculationController& controller, std::int64_t n_tokens, std::int64_t n_start);
    // One source or, with use_both, n-ngrams and where there are none the other; always as wide.
    Tally fixed(bool use_ngram, bool use_block, std::int32_t width, std::int64_t n_tokens, std::int64_t n_start);
    Tally plain(std::int64_t n_tokens, std::int64_t n_start) { return fixed(false, false, 0, n_tokens, n_start); }

private:
    // Lanes that have to go back, and what was right of their calls: together with their next tokens it is computed in
    // a call of their own, which brings a token each.
    struct Back {
        std::int32_t n_lanes = 0;
        std::int32_t n_tokens = 0;
    };
    // Of a lane that verified n_drafted tokens and got n_new.
    void go_back(std::int32_t n_drafted, std::int32_t& n_new, Back& back) const {
        if (n_drafted + 1 - n_new <= world_.t.n_rollback) return;
        ++back.n_lanes;
        back.n_tokens += n_new++;
    }
    double back_s(const Back& back) const {
        return back.n_lanes > 0 ? world_.call_s(back.n_lanes, back.n_tokens, all_text()) : 0;
    }

    std::int32_t text_at(std::size_t lane) const { return world_.t.n_prompt + places_[lane] % world_.t.n_text; }
    std::int32_t all_text() const {
        std::int32_t sum = 0;
        for (std::size_t i = 0; i < places_.size(); ++i) sum += text_at(i);
        return sum;
    }
    void step(speculation::SpeculationController& controller);
    double changed_s(std::int32_t n_drafted) {
        const bool is_behind = std::exchange(last_drafted_, n_drafted) > 0 && n_drafted == 0;
        return is_behind ? world_.t.change_share * world_.t.plain_s : 0;
    }
    void count(double seconds, std::int64_t n_tokens, std::int64_t n_start) {
        n_done_ += n_tokens;
        if (n_done_ <= n_start) return;
        tally_.seconds += seconds;
        tally_.n_tokens += n_tokens;
    }

    const World& world_;
    std::vector<std::int32_t> places_;  // tokens decoded in each lane
    std::int32_t last_drafted_ = 0;
    std::uint64_t n_steps_ = 0;
    std::int64_t n_done_ = 0;
    double step_s_ = 0;
    std::int64_t step_tokens_ = 0;
    Tally tally_;
};

inline Tally Player::fixed(bool use_ngram, bool use_block, std::int32_t width, std::int64_t n_tokens,
                           std::int64_t n_start) {
    while (n_done_ < n_tokens) {
        std::int32_t n_drafted = 0, n_asked = 0, n_widest = 0;
        std::int64_t n_emitted = 0;
        Back back;
        const std::int32_t n_text = all_text();
        for (std::size_t i = 0; i < places_.size(); ++i) {
            const auto lane = static_cast<std::int32_t>(i);
            SampleDraft draft;
            if (use_ngram) draft = world_.ngram(lane, places_[i]);
            if (use_block && draft.confidence.empty()) {
                draft = world_.block(lane, places_[i], world_.t.token_share > 0 ? width : kBlock);
                ++n_asked;
            }
            const auto n = std::min(width, static_cast<std::int32_t>(draft.confidence.size()));
            n_drafted += n;
            n_widest = std::max(n_widest, n);
            std::int32_t n_new = 1 + std::min(n, draft.n_right);
            go_back(n, n_new, back);
            n_emitted += n_new;
            places_[i] += n_new;
        }
        const auto n_lanes = static_cast<std::int32_t>(places_.size());
        if (world_.t.are_equal) n_drafted = n_widest * n_lanes;
        double seconds = world_.call_s(n_lanes, n_drafted, n_text) + changed_s(n_drafted) + back_s(back);
        if (n_asked > 0) {
            const std::int32_t n_tokens = n_asked * (world_.t.token_share > 0 ? width : kBlock);
            seconds += world_.draft_s(n_asked, n_tokens, n_text / n_lanes);
        }
        count(seconds, n_emitted, n_start);
    }
    return tally_;
}

inline Tally Player::with_gate(speculation::SpeculationController& controller, std::int64_t n_tokens,
                               std::int64_t n_start) {
    while (n_done_ < n_tokens) {
        step(controller);
        count(step_s_, step_tokens_, n_start);
    }
    return tally_;
}

inline void Player::step(speculation::SpeculationController& controller) {
    using namespace speculation;
    ++n_steps_;
    step_s_ = 0;
    const auto n_lanes = static_cast<std::int32_t>(places_.size());
    std::vector<LaneState> lanes;
    std::vector<SampleDraft> drafts;
    std::vector<Proposal> proposals;
    drafts.reserve(2 * places_.size());
    std::int32_t n_longest = 0;
    for (std::size_t i = 0; i < places_.size(); ++i) {
        const auto lane = static_cast<LaneId>(i);
        lanes.push_back({lane, text_at(i), kBlock});
        n_longest = std::max(n_longest, text_at(i));
        drafts.push_back(world_.ngram(static_cast<std::int32_t>(i), places_[i]));
        if (!drafts.back().confidence.empty()) proposals.push_back({lane, kNgram, drafts.back().confidence});
    }
    std::vector<std::size_t> draft_of;  // by proposal
    for (std::size_t i = 0; i < drafts.size(); ++i) {
        if (!drafts[i].confidence.empty()) draft_of.push_back(i);
    }
    const std::vector<DraftRequest> asks = controller.requests(lanes, proposals);
    std::int32_t n_asked_tokens = 0;
    for (const DraftRequest& ask : asks) {
        const auto lane = static_cast<std::size_t>(ask.lane);
        drafts.push_back(world_.block(static_cast<std::int32_t>(lane), places_[lane], ask.n_tokens));
        proposals.push_back({ask.lane, kBlockDraft, drafts.back().confidence});
        draft_of.push_back(drafts.size() - 1);
        n_asked_tokens += ask.n_tokens;
    }
    if (!asks.empty()) {
        const auto n_asked = static_cast<std::int32_t>(asks.size());
        const double seconds = world_.draft_s(n_asked, n_asked_tokens, all_text() / n_lanes);
        step_s_ += seconds;
        controller.observe_draft(kBlockDraft, n_asked, n_asked_tokens, world_.noisy(seconds, n_steps_, 1));
    }
    const std::vector<Choice> choices = controller.choose(lanes, proposals);
    std::int32_t n_drafted = 0, n_widest = 0;
    for (const Choice& choice : choices) {
        n_drafted += choice.width;
        n_widest = std::max(n_widest, choice.width);
    }
    if (world_.t.are_equal) n_drafted = n_widest * n_lanes;
    const double seconds = world_.call_s(n_lanes, n_drafted, all_text()) + changed_s(n_drafted);
    step_s_ += seconds;
    step_tokens_ = 0;
    std::vector<std::int32_t> n_new(places_.size(), 1);
    for (std::size_t i = 0; i < choices.size(); ++i) {
        if (choices[i].width > 0) n_new[i] += std::min(choices[i].width, drafts[draft_of[choices[i].proposal]].n_right);
        step_tokens_ += n_new[i];
    }
    const double noisy_s = world_.noisy(seconds, n_steps_, 2);
    const auto n_right = static_cast<std::int32_t>(step_tokens_) - n_lanes;
    Back back;
    for (std::size_t i = 0; i < choices.size(); ++i) {
        go_back(world_.t.are_equal ? n_widest : choices[i].width, n_new[i], back);
    }
    step_s_ += back_s(back);
    step_tokens_ += back.n_lanes;
    controller.observe_step(
        {n_lanes, n_lanes + n_drafted, n_longest, noisy_s, back.n_tokens, n_right, false, false, back.n_lanes});
    for (std::size_t p = 0; p < proposals.size(); ++p) {
        const auto i = static_cast<std::size_t>(proposals[p].lane);
        const bool is_chosen = choices[i].width > 0 && choices[i].proposal == p;
        if (!is_chosen && !world_.t.judges_all) continue;
        const auto length = static_cast<std::int32_t>(proposals[p].confidence.size());
        const std::int32_t width = is_chosen ? choices[i].width : std::min(length, n_new[i]);
        controller.observe_verdict(proposals[p], width, std::min(width, drafts[draft_of[p]].n_right));
    }
    for (std::size_t i = 0; i < places_.size(); ++i) {
        const std::int32_t text_before = places_[i] / world_.t.n_text;
        places_[i] += n_new[i];
        if (places_[i] / world_.t.n_text != text_before) controller.begin(static_cast<LaneId>(i));
    }
}

}  // namespace luce::tests
