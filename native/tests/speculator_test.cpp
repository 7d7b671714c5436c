// Tests of the speculator: what of a draft is verified.
#include "engine/speculator.h"

#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"

TEST_SUITE_BEGIN("engine");

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

}  // namespace

TEST_CASE("nothing is verified behind the token that ends the request") {
    SpeculationConfig config;
    config.sources.push_back(std::make_unique<Always>(Tokens{5, 6, 7, 8, 9}));
    config.n_most = 8;
    config.has_gate = false;
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

TEST_SUITE_END();
