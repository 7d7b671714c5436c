// Tests of the speculator: what of a draft is verified.
#include "engine/speculator.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

TEST_SUITE("engine") {

using namespace luce;
using namespace luce::engine;

namespace {

class Always final : public speculation::DraftSource {
public:
    explicit Always(Tokens tokens) : tokens_(std::move(tokens)) {}
    const speculation::SourceTraits& traits() const override { return traits_; }
    Result<void> draft(std::span<const speculation::DraftAsk> asks, std::vector<speculation::Draft>& drafts) override {
        for (const speculation::DraftAsk& ask : asks) {
            drafts.push_back({ask.lane, tokens_, std::vector<float>(tokens_.size(), 0.9F)});
        }
        return {};
    }
    void follow(LaneId, std::span<const Token>, std::int32_t, std::int32_t, speculation::BatchRows) override {}
    void begin(LaneId, std::span<const Token>, std::int32_t) override {}
    void forget(LaneId) override {}

private:
    speculation::SourceTraits traits_{"always", 8, true};
    Tokens tokens_;
};

// A model that is always right and takes a tenth of a plain step; before its first draft it has n_put_off positions to
// compute, which take as long as 6 plain steps.
class PutOff final : public speculation::DraftSource {
public:
    PutOff(ManualClock& clock, std::int32_t n_put_off, int& n_asked)
        : clock_(clock), n_put_off_(n_put_off), n_asked_(n_asked) {}
    const speculation::SourceTraits& traits() const override { return traits_; }
    Result<std::int32_t> prepare(std::span<const speculation::DraftAsk>) override {
        if (n_put_off_ > 0) clock_.advance(6 * kPlain_s);
        return std::exchange(n_put_off_, 0);
    }
    Result<void> draft(std::span<const speculation::DraftAsk> asks, std::vector<speculation::Draft>& drafts) override {
        clock_.advance(kPlain_s / 10);
        ++n_asked_;
        for (const speculation::DraftAsk& ask : asks) {
            const auto n = static_cast<std::size_t>(ask.n_most);
            drafts.push_back({ask.lane, Tokens(n, 7), std::vector<float>(n, 0.9F)});
        }
        return {};
    }
    void follow(LaneId, std::span<const Token>, std::int32_t, std::int32_t, speculation::BatchRows) override {}
    void begin(LaneId, std::span<const Token>, std::int32_t) override {}
    void forget(LaneId) override {}

    static constexpr double kPlain_s = 0.01;

private:
    speculation::SourceTraits traits_{"put off", 4, false};
    ManualClock& clock_;
    std::int32_t n_put_off_;
    int& n_asked_;
};

// Drafts two tokens at each of two places: 0 or 1, then 2 or 3 behind 0, 4 or 5 behind 1.
class TwoPlaces final : public speculation::DraftSource {
public:
    const speculation::SourceTraits& traits() const override { return traits_; }
    Result<void> draft(std::span<const speculation::DraftAsk> asks, std::vector<speculation::Draft>& drafts) override {
        for (const speculation::DraftAsk& ask : asks) {
            speculation::Draft& draft = drafts.emplace_back();
            draft.lane = ask.lane;
            draft.tokens = {0, 1, 2, 3, 4, 5};
            draft.confidence = {0.8F, 0.1F, 0.8F, 0.1F, 0.8F, 0.1F};
            draft.parents = {-1, -1, 0, 0, 1, 1};
        }
        return {};
    }
    void follow(LaneId, std::span<const Token>, std::int32_t, std::int32_t, speculation::BatchRows) override {}
    void begin(LaneId, std::span<const Token>, std::int32_t) override {}
    void forget(LaneId) override {}

private:
    speculation::SourceTraits traits_{"trees", 6, false, true};
};

// What is logged while it lives: stderr goes to a file overlapped.
class LoggedLines {
public:
    LoggedLines() : file_(std::tmpfile()), stderr_(dup(STDERR_FILENO)) {
        REQUIRE(file_ != nullptr);
        REQUIRE(stderr_ >= 0);
        REQUIRE(dup2(fileno(file_), STDERR_FILENO) == STDERR_FILENO);
    }
    ~LoggedLines() {
        dup2(stderr_, STDERR_FILENO);
        close(stderr_);
        std::fclose(file_);
    }
    LoggedLines(const LoggedLines&) = delete;
    LoggedLines& operator=(const LoggedLines&) = delete;

    int n_with(const std::string& words) const {
        std::rewind(file_);
        int n = 0;
        std::array<char, 512> line{};
        while (std::fgets(line.data(), static_cast<int>(line.size()), file_) != nullptr) {
            n += std::string(line.data()).find(words) != std::string::npos ? 1 : 0;
        }
        return n;
    }

private:
    std::FILE* file_;
    int stderr_;
};

// How often it is said that branches do not pay, in 1,500 steps in which the likelier of two tokens is right in half of
// all places, the other one in four of ten; a call with branches costs so much of a plain step more.
int n_said_of_branches(double branch_share, bool is_adaptive) {
    const LoggedLines lines;
    ManualClock clock;
    SpeculationConfig config;
    config.sources.push_back(std::make_unique<TwoPlaces>());
    config.n_most = 2;
    config.n_tree = 6;
    config.n_branches = 6;
    config.is_adaptive = is_adaptive;
    Speculator speculator(std::move(config), 1, clock);
    std::mt19937 random(11);
    std::uniform_real_distribution<double> uniform;
    const auto lane = static_cast<LaneId>(0);
    Tokens text(100, 7);
    speculator.begin(lane, text, 0);
    for (int step = 0; step < 1500; ++step) {
        const Speculator::Candidate candidate{lane, text, 6, 2};
        speculator.propose(std::span(&candidate, 1));
        const std::span<const Token> tokens = speculator.proposed(lane);
        const std::span<const std::int32_t> parents = speculator.parents(lane);
        bool has_branches = false;
        for (std::size_t i = 1; i < parents.size(); ++i) {
            has_branches = has_branches || parents[i] != static_cast<std::int32_t>(i) - 1;
        }
        const auto n_drafted = std::max<std::int32_t>(static_cast<std::int32_t>(tokens.size()) - 1, 0);
        Tokens got;
        for (int place = 0; place < 2 && (got.empty() || got.back() < 9); ++place) {
            const double draw = uniform(random);
            const Token second = draw < 0.5 ? 0 : 1;
            got.push_back(draw >= 0.9 ? 9 : place == 0 ? second : 2 + 2 * got[0] + second);
        }
        std::int32_t n_right = 0;
        for (std::size_t i = 1; i < tokens.size(); ++i) {
            const auto wanted = static_cast<std::size_t>(n_right);
            if (wanted < got.size() && tokens[i] == got[wanted]) ++n_right;
        }
        speculation::StepCost cost;
        cost.n_lanes = 1;
        cost.n_tokens = 1 + n_drafted;
        cost.n_longest = static_cast<std::int32_t>(text.size());
        cost.seconds = 0.01 + 0.0003 * n_drafted + (has_branches ? 0.01 * branch_share : 0);
        cost.n_right = n_right;
        cost.has_branches = has_branches;
        clock.advance(cost.seconds);
        got.resize(std::min(got.size(), static_cast<std::size_t>(n_right) + 1));
        speculator.judged(lane, got, n_right, n_drafted, cost.seconds);
        speculator.measured(cost);
        text.insert(text.end(), got.begin(), got.end());
    }
    return lines.n_with("branches cost more here than they bring");
}

// How often it was asked in 200 steps of one lane.
int n_asked_with(std::int32_t n_put_off) {
    ManualClock clock;
    int n_asked = 0;
    SpeculationConfig config;
    config.sources.push_back(std::make_unique<PutOff>(clock, n_put_off, n_asked));
    config.n_most = 4;
    Speculator speculator(std::move(config), 1, clock);
    const auto lane = static_cast<LaneId>(0);
    Tokens text = {1, 2, 3};
    speculator.begin(lane, text, 0);
    for (int step = 0; step < 200; ++step) {
        Speculator::Candidate candidate{lane, text, 4, 4};
        candidate.ends_with = [](Token) { return false; };
        speculator.propose(std::span(&candidate, 1));
        const auto n_drafted =
            std::max<std::int32_t>(static_cast<std::int32_t>(speculator.proposed(lane).size()) - 1, 0);
        const double seconds = PutOff::kPlain_s * (1 + 0.05 * n_drafted);
        clock.advance(seconds);
        speculation::StepCost cost;
        cost.n_lanes = 1;
        cost.n_tokens = 1 + n_drafted;
        cost.n_longest = static_cast<std::int32_t>(text.size());
        cost.seconds = seconds;
        cost.n_right = n_drafted;
        const Tokens got(static_cast<std::size_t>(n_drafted) + 1, 7);
        speculator.judged(lane, got, n_drafted, n_drafted, seconds);
        speculator.measured(cost);
        text.insert(text.end(), got.begin(), got.end());
    }
    return n_asked;
}

}  // namespace

TEST_CASE("what a draft model had put off is no cost of the draft that it is made up for") {
    const int n_without = n_asked_with(0);
    CHECK(n_without > 100);
    CHECK(n_asked_with(500) >= n_without * 9 / 10);
    CHECK(n_asked_with(1) < n_without / 2);  // what a step leaves is
}

TEST_CASE("that branches do not pay is said once, and only where it is so") {
    CHECK(n_said_of_branches(1.5, true) == 1);
    CHECK(n_said_of_branches(0, true) == 0);
    CHECK(n_said_of_branches(1.5, false) == 0);
}

TEST_CASE("what drafting took for a step that was not made is not told of the next one") {
    ManualClock clock;
    int n_asked = 0;
    SpeculationConfig config;
    config.sources.push_back(std::make_unique<PutOff>(clock, 0, n_asked));
    config.n_most = 4;
    config.is_adaptive = false;
    Speculator speculator(std::move(config), 1, clock);
    const auto lane = static_cast<LaneId>(0);
    const Tokens text = {1, 2, 3};
    const Speculator::Candidate candidate{lane, text, 4, 4};
    speculator.begin(lane, text, 0);
    double draft_s = 0;
    for (const int n_withdrawn : {0, 2}) {
        for (int i = 0; i < n_withdrawn; ++i) {
            speculator.propose(std::span(&candidate, 1));
            speculator.withdraw();
        }
        speculator.propose(std::span(&candidate, 1));
        const double told_s = speculator.judged(lane, Tokens{7}, 0, 4, 0.01).draft_s;
        CHECK(told_s > 0);
        if (n_withdrawn > 0) CHECK(told_s == doctest::Approx(draft_s));
        draft_s = told_s;
    }
}

TEST_CASE("nothing is verified behind the token that ends the request") {
    SpeculationConfig config;
    config.sources.push_back(std::make_unique<Always>(Tokens{5, 6, 7, 8, 9}));
    config.n_most = 8;
    config.is_adaptive = false;
    const SteadyClock clock;
    Speculator speculator(std::move(config), 1, clock);
    const auto lane = static_cast<LaneId>(0);
    const Tokens text = {1, 2, 3};
    const auto proposed = [&](Token last) {
        Speculator::Candidate candidate{lane, text, 8, 8};
        candidate.ends_with = [last](Token token) { return token == last; };
        speculator.propose(std::span(&candidate, 1));
        const std::span<const Token> tokens = speculator.proposed(lane);
        return Tokens(tokens.begin(), tokens.end());
    };
    CHECK(proposed(4) == Tokens{3, 5, 6, 7, 8, 9});
    CHECK(proposed(7) == Tokens{3, 5, 6});
    CHECK(proposed(5).empty());
}

}  // TEST_SUITE("engine")
