// Tests of the warm-up: it leaves nothing behind, takes no longer than it may, and what it finds decides from the
// first step on whether anybody is asked for drafts.
#include "engine/warm_up.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/engine/fake_model.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::engine;
using luce::tests::FakeModel;

namespace {

constexpr std::int32_t kLanes = 4;
constexpr std::int32_t kMost = 15;
constexpr std::int32_t kPool = 4096;

// Not free; counts what it is told.
class Model final : public speculation::DraftSource {
public:
    Model(ManualClock& clock, double draft_seconds) : draft_s(draft_seconds), clock_(clock) {}
    const speculation::SourceTraits& traits() const override { return traits_; }
    Result<void> draft(std::span<const speculation::DraftAsk> asks, std::vector<speculation::Draft>& drafts) override {
        ++n_asked;
        const bool makes_graph = n_asked_of[asks.size()]++ < 2;
        clock_.advance(makes_graph ? std::max(first_s, draft_s) : draft_s);
        for (const speculation::DraftAsk& ask : asks) {
            drafts.push_back({ask.lane, Tokens(static_cast<std::size_t>(ask.n_most), 1),
                              std::vector<float>(static_cast<std::size_t>(ask.n_most), 0.9F)});
        }
        return {};
    }
    void follow(LaneId, std::span<const Token>, std::int32_t, std::int32_t n_new, speculation::BatchRows) override {
        n_followed += n_new;
    }
    void skip(LaneId, std::span<const Token>, std::int32_t, std::int32_t n_new, speculation::BatchRows) override {
        n_skipped += n_new;
    }
    void leave_out(LaneId, std::span<const Token>, std::int32_t, std::int32_t n_new) override { n_left_out += n_new; }
    void begin(LaneId lane, std::span<const Token>, std::int32_t) override { lanes.insert(lane); }
    void forget(LaneId lane) override { lanes.erase(lane); }

    double draft_s;
    double first_s = 0;                     // that the first two drafts of so many lanes take, if it is more
    std::map<std::size_t, int> n_asked_of;  // by the number of lanes
    int n_asked = 0;
    std::int32_t n_followed = 0;
    std::int32_t n_skipped = 0;
    std::int32_t n_left_out = 0;
    std::set<LaneId> lanes;

private:
    ManualClock& clock_;
    speculation::SourceTraits traits_{"model", kMost, false};
};

// A machine on which a call takes a while and then so long a token.
struct Machine {
    Machine(double call_seconds, double token_seconds, double draft_s)
        : call_s(call_seconds), token_s(token_seconds), decoder(limits(), true) {
        decoder.on_decode = [this](std::int32_t n) { clock.advance(call_s + token_s * n); };
        auto drafts = std::make_unique<Model>(clock, draft_s);
        model = drafts.get();
        SpeculationConfig config;
        config.sources.push_back(std::move(drafts));
        config.n_most = kMost;
        config.wants_equal_widths = true;
        speculator = std::make_unique<Speculator>(std::move(config), kLanes, clock);
    }

    static DecoderLimits limits() {
        DecoderLimits limits;
        limits.n_vocab = luce::tests::kVocab;
        limits.n_pool = kPool;
        limits.n_ubatch = limits.n_batch = 512;
        limits.n_logits = kLanes * (1 + kMost);
        return limits;
    }

    // Decodes in all lanes, where no draft is right.
    void decode(int n_steps) {
        std::vector<Tokens> texts(kLanes, Tokens(40, 1));
        for (std::int32_t i = 0; i < kLanes; ++i) speculator->begin(static_cast<LaneId>(i), texts[0], 39);
        for (int step = 0; step < n_steps; ++step) {
            std::vector<Speculator::Candidate> lanes;
            for (std::size_t i = 0; i < texts.size(); ++i) {
                lanes.push_back({static_cast<LaneId>(i), texts[i], kMost, kMost});
            }
            speculator->propose(lanes);
            std::int32_t n_tokens = 0;
            for (const Speculator::Candidate& lane : lanes) {
                n_tokens += std::max(static_cast<std::int32_t>(speculator->proposed(lane.lane).size()), 1);
            }
            const double seconds = call_s + token_s * n_tokens;
            speculator->measured({kLanes, n_tokens, static_cast<std::int32_t>(texts[0].size()), seconds});
            for (std::size_t i = 0; i < texts.size(); ++i) {
                texts[i].push_back(1);
                const auto n_computed = static_cast<std::int32_t>(texts[i].size()) - 1;
                speculator->follow(static_cast<LaneId>(i), texts[i], n_computed, 1, 0, true);
            }
        }
    }

    double call_s;
    double token_s;
    ManualClock clock;
    FakeModel decoder;
    std::unique_ptr<Speculator> speculator;
    Model* model = nullptr;  // the speculator's
};

}  // namespace

TEST_CASE("a warm-up leaves nothing behind") {
    Machine machine(0.001, 0.0002, 0.002);
    warm_up(machine.decoder, *machine.speculator, kLanes, machine.clock);
    CHECK(machine.decoder.n_calls > 8);
    CHECK(machine.model->n_asked > 0);
    CHECK(machine.decoder.n_free_cells() == kPool);
    CHECK(machine.model->lanes.empty());
    CHECK_FALSE(machine.decoder.misuse.has_value());
}

TEST_CASE("a warm-up is short, however slow the machine") {
    Machine fast(1e-4, 1e-5, 1e-4), slow(0.05, 0.01, 0.1), slowest(30, 1, 30);
    for (Machine* machine : {&fast, &slow, &slowest}) {
        warm_up(machine->decoder, *machine->speculator, kLanes, machine->clock);
    }
    CHECK(fast.clock.now_s() < 0.1);
    CHECK(slow.clock.now_s() < 2.1);
    CHECK(slowest.decoder.n_calls == 1);
}

TEST_CASE("where calls take long it is found out all the same that wide ones take longer") {
    Machine machine(0.005, 0.035, 0.01);
    std::int32_t n_widest = 0;
    machine.decoder.on_decode = [&](std::int32_t n) {
        n_widest = std::max(n_widest, n);
        machine.clock.advance(machine.call_s + machine.token_s * n);
    };
    warm_up(machine.decoder, *machine.speculator, kLanes, machine.clock);
    CHECK(n_widest >= 1 + kMost);
}

TEST_CASE("where a token costs as much verified as decoded no draft is asked for and no answer read") {
    Machine machine(0, 0.001, 0.002);
    warm_up(machine.decoder, *machine.speculator, kLanes, machine.clock);
    const int n_asked = machine.model->n_asked;
    const std::int32_t n_followed = machine.model->n_followed;
    machine.decode(200);
    CHECK(machine.model->n_asked == n_asked);
    CHECK(machine.model->n_skipped == 200 * kLanes);
    // A prompt is read all the same: it may be of use when fewer lanes run.
    machine.speculator->follow(LaneId{0}, Tokens(64, 1), 64, 64, 0, false);
    CHECK(machine.model->n_followed == n_followed + 64);
}

TEST_CASE("where calls take as long whatever they verify drafts are asked for soon") {
    Machine machine(0.01, 0.00001, 0.002);
    warm_up(machine.decoder, *machine.speculator, kLanes, machine.clock);
    const int n_asked = machine.model->n_asked;
    machine.decode(3);
    CHECK(machine.model->n_asked > n_asked);
    CHECK(machine.model->n_skipped == 0);
}

TEST_CASE("what graphs take to make is not taken for the price of drafts") {
    Machine machine(0.002, 0.00001, 0.0004);
    machine.model->first_s = 0.04;
    warm_up(machine.decoder, *machine.speculator, kLanes, machine.clock);
    const int n_asked = machine.model->n_asked;
    machine.decode(3);
    CHECK(machine.model->n_asked > n_asked);
    CHECK(machine.model->n_skipped == 0);
}

TEST_CASE("what graphs take to make is not taken for the price of calls either") {
    Machine machine(0.0005, 0.000001, 0.0001);
    std::map<std::pair<std::size_t, std::int32_t>, int> n_calls_of;  // by lanes and tokens
    machine.decoder.on_decode = [&](std::int32_t n) {
        const std::size_t n_lanes = machine.decoder.last_call.size();
        const bool makes_graph = n > static_cast<std::int32_t>(n_lanes) && n_calls_of[{n_lanes, n}]++ < 2;
        machine.clock.advance(machine.call_s + machine.token_s * n + (makes_graph ? 0.03 : 0));
    };
    warm_up(machine.decoder, *machine.speculator, kLanes, machine.clock);
    const int n_asked = machine.model->n_asked;
    machine.decode(3);
    CHECK(machine.model->n_asked > n_asked);
    CHECK(machine.model->n_skipped == 0);
}

TEST_CASE("what was measured while other programs took the processor is not believed") {
    // Calls of many tokens seem hopeless, and drafts too dear for any answer.
    Machine machine(0, 0.001, 0.3);
    machine.decoder.is_contended = true;
    warm_up(machine.decoder, *machine.speculator, kLanes, machine.clock);
    const int n_asked = machine.model->n_asked;
    machine.decoder.is_contended = false;
    machine.model->draft_s = 0.0004;
    machine.call_s = 0.002;
    machine.token_s = 0.00001;
    machine.decode(20);
    CHECK(machine.model->n_asked > n_asked);
}

TEST_CASE("an answer in which nobody was asked for drafts need not be read at its end") {
    Machine machine(0.01, 0.00001, 0.002);
    const Tokens text(50, 1);
    machine.speculator->begin(LaneId{0}, text, 40);
    machine.speculator->end(LaneId{0}, text, 49, 9);
    CHECK(machine.model->n_left_out == 9);
    warm_up(machine.decoder, *machine.speculator, kLanes, machine.clock);
    machine.decode(20);
    machine.speculator->end(LaneId{0}, text, 49, 9);
    CHECK(machine.model->n_left_out == 9);
    machine.speculator->begin(LaneId{0}, text, 40);
    machine.speculator->end(LaneId{0}, text, 49, 4);
    CHECK(machine.model->n_left_out == 13);
}

}  // TEST_SUITE("speculation")
