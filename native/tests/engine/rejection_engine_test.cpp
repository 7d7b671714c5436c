// Tests of the engine with drafts that are drawn: the tokens of many requests are distributed as those of plain
// decoding, follow from their seeds, and requests that do not sample freely are matched as ever.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/engine_outcome.h"
#include "tests/engine/fake_model.h"
#include "tests/support/chi_square.h"

TEST_SUITE_BEGIN("engine");

using namespace luce;
using namespace luce::engine;
using namespace luce::speculation;
using namespace luce::tests;

namespace {

constexpr Token kLeast = 100;  // of the few tokens that texts are made of here
constexpr int kFew = 6;

// Some distribution over the few, another one for each text.
Distribution distribution_of(std::uint64_t hash, double spread) {
    Distribution distribution;
    float sum = 0;
    for (int i = 0; i < kFew; ++i) {
        const double uniform = uniform_at(hash, static_cast<std::uint64_t>(i), Draw::draft);
        sum += distribution.emplace_back(kLeast + i, std::exp(static_cast<float>(spread * uniform))).probability;
    }
    for (TokenProbability& entry : distribution) entry.probability /= sum;
    return distribution;
}

Distribution of_target(std::uint64_t hash) { return distribution_of(hash, 3.0); }

// Halfway to the target's, and without its last token.
Distribution of_draft(std::uint64_t hash) {
    Distribution mixed = distribution_of(hash ^ 0x5555, 4.0);
    const Distribution target = of_target(hash);
    for (std::size_t i = 0; i < mixed.size(); ++i) {
        mixed[i].probability = 0.5F * (mixed[i].probability + target[i].probability);
    }
    const float gone = mixed.back().probability;
    mixed.pop_back();
    for (TokenProbability& entry : mixed) entry.probability /= 1 - gone;
    return mixed;
}

enum class Rule { right, keeps_all, replaces_by_target };

// Draws from the fake model's hash, by the request's seed and the token's place.
class DrawingSampler final : public TokenSampler {
public:
    DrawingSampler(const FakeModel& model, const Request& request, Rule rule)
        : model_(model),
          seed_(request.sampling.seed),
          is_greedy_(request.sampling.is_greedy()),
          index_(static_cast<std::uint64_t>(request.n_generated_before)),
          rule_(rule) {}

    Result<Token> sample(std::size_t row) override {
        const Distribution p = of_target(hash(row));
        if (is_greedy_) {
            ++index_;
            return std::max_element(p.begin(), p.end(), [](auto& a, auto& b) { return a.probability < b.probability; })
                ->token;
        }
        return draw_from(p, uniform_at(~seed_, index_++, Draw::draft));
    }

    Result<Token> sample_drafted(std::size_t row, const DrawnToken& drafted) override {
        const Distribution p = of_target(hash(row));
        const double keep = uniform_at(seed_, index_, Draw::keep);
        const double replace = uniform_at(seed_, index_++, Draw::replace);
        const Token token = keep_or_replace(p, drafted, keep, replace);
        if (rule_ == Rule::right || token == drafted.token) return token;
        return rule_ == Rule::keeps_all ? drafted.token : draw_from(p, replace);
    }

    std::vector<TokenLogprob> logprobs(std::size_t, Token, std::int32_t) const override { return {}; }

private:
    std::uint64_t hash(std::size_t row) const {
        const std::span<const float> logits = model_.logits(row);
        std::uint64_t hash = 0;
        for (std::size_t i = 0; i < 4; ++i) hash |= static_cast<std::uint64_t>(logits[i]) << (16 * i);
        return hash;
    }

    const FakeModel& model_;
    std::uint64_t seed_;
    bool is_greedy_;
    std::uint64_t index_;
    Rule rule_;
};

class DrawingSamplers final : public SamplerFactory {
public:
    DrawingSamplers(const FakeModel& model, Rule rule) : model_(model), rule_(rule) {}

    Result<std::unique_ptr<TokenSampler>> create(const Request& request) override {
        return std::unique_ptr<TokenSampler>(std::make_unique<DrawingSampler>(model_, request, rule_));
    }

private:
    const FakeModel& model_;
    Rule rule_;
};

// Draws where it is told to, and proposes what is likeliest where not.
class DrawingDrafts final : public DraftSource {
public:
    const SourceTraits& traits() const override { return traits_; }

    Result<void> draft(std::span<const DraftAsk> asks, std::vector<Draft>& drafts) override {
        for (const DraftAsk& ask : asks) {
            Tokens text(ask.text.begin(), ask.text.end());
            Draft& draft = drafts.emplace_back();
            draft.lane = ask.lane;
            n_drawn += ask.draw ? 1 : 0;
            n_drawn_trees += ask.draw && ask.n_leaves > 1 ? 1 : 0;
            for (std::int32_t i = 0; i < std::min(ask.n_most, traits_.n_most); ++i) {
                Distribution q = of_draft(hash_text(text));
                const double uniform =
                    ask.draw ? uniform_at(ask.draw->seed, ask.draw->index + static_cast<std::uint64_t>(i), Draw::draft)
                             : 0.0;
                draft.tokens.push_back(draw_from(q, uniform));
                draft.confidence.push_back(0.5F);
                text.push_back(draft.tokens.back());
                if (ask.draw) draft.drawn_from.push_back(std::move(q));
            }
        }
        return {};
    }

    void follow(LaneId, std::span<const Token>, std::int32_t, std::int32_t, BatchRows) override {}
    void begin(LaneId, std::span<const Token>, std::int32_t) override {}
    void forget(LaneId) override {}

    int n_drawn = 0;
    int n_drawn_trees = 0;

private:
    SourceTraits traits_{"drawing", 3, false, true};
};

struct Setup {
    // Drafts unset: plain decoding.
    explicit Setup(std::optional<bool> draws, Rule rule = Rule::right, bool wants_equal_widths = false, int n_tree = 0)
        : decoder({kVocab, 1024, 64, 64, false, 64, n_tree}),
          samplers(decoder, rule),
          memory(decoder, nullptr, {"test", 1 << 20, 16, true}, clock) {
        const EngineConfig config = {128, 4, 64};
        if (draws) {
            auto source = std::make_unique<DrawingDrafts>();
            drafts = source.get();
            SpeculationConfig speculation;
            speculation.sources.push_back(std::move(source));
            speculation.n_most = 3;
            speculation.has_gate = false;
            speculation.wants_equal_widths = wants_equal_widths;
            speculation.draws = *draws;
            speculation.n_tree = speculation.n_branches = n_tree;
            speculator.emplace(std::move(speculation), config.n_lanes, clock);
        }
        engine.emplace(decoder, samplers, memory, clock, config, speculator ? &*speculator : nullptr);
    }

    // Of each request, in their order.
    std::vector<Tokens> answers(const std::vector<Request>& requests) {
        Outcome outcome;
        std::size_t n_sent = 0;
        while (n_sent < requests.size() || !engine->is_idle()) {
            while (n_sent < requests.size() && engine->submit(requests[n_sent])) ++n_sent;
            outcome.take(engine->step());
        }
        CHECK(outcome.failed.empty());
        CHECK(!decoder.misuse);
        std::vector<Tokens> tokens;
        for (const Request& r : requests) tokens.push_back(outcome.tokens[r.key]);
        return tokens;
    }

    FakeModel decoder;
    DrawingSamplers samplers;
    ManualClock clock;
    memory::KvCacheManager memory;
    DrawingDrafts* drafts = nullptr;
    std::optional<Speculator> speculator;
    std::optional<Engine> engine;
};

constexpr int kRequests = 6000;

// Different lengths, so that drafts end at different places, are cut and padded.
std::vector<Request> sampling_requests(int n, float temperature = 1.0F) {
    std::vector<Request> requests;
    for (int i = 0; i < n; ++i) {
        Request r = request(static_cast<std::uint64_t>(i) + 1, {5, 6, 7}, 3 + i % 3);
        r.sampling.temperature = temperature;
        r.sampling.seed = static_cast<std::uint64_t>(i);
        requests.push_back(std::move(r));
    }
    return requests;
}

// Counts of the three first tokens together: drafts begin behind the first, which the prompt gives.
ChiSquare::Counts prefix_matches(const std::vector<Tokens>& answers) {
    ChiSquare::Counts counts;
    for (const Tokens& answer : answers) {
        ++counts[((answer.at(0) - kLeast) * kFew + answer.at(1) - kLeast) * kFew + answer.at(2) - kLeast];
    }
    return counts;
}

// Of all prefixes, by the model alone.
Distribution expected_prefixes() {
    Distribution expected;
    const Tokens prompt = {5, 6, 7};
    for (const TokenProbability& a : of_target(hash_text(prompt))) {
        for (const TokenProbability& b : of_target(hash_on(hash_text(prompt), a.token))) {
            const std::uint64_t hash = hash_on(hash_on(hash_text(prompt), a.token), b.token);
            for (const TokenProbability& c : of_target(hash)) {
                expected.push_back({((a.token - kLeast) * kFew + b.token - kLeast) * kFew + c.token - kLeast,
                                    a.probability * b.probability * c.probability});
            }
        }
    }
    return expected;
}

}  // namespace

TEST_CASE("drafts that are drawn leave the distribution of what is sampled as it is") {
    const std::vector<Request> requests = sampling_requests(kRequests);
    Setup plain(std::nullopt);
    const ChiSquare::Counts of_plain = prefix_matches(plain.answers(requests));
    CHECK(ChiSquare::against(of_plain, expected_prefixes()).excess() < 1.0);
    struct Way {
        bool wants_equal_widths;
        int n_tree;
    };
    for (const Way way : {Way{false, 0}, Way{true, 0}, Way{false, 8}}) {
        Setup drawing(true, Rule::right, way.wants_equal_widths, way.n_tree);
        const ChiSquare::Counts counts = prefix_matches(drawing.answers(requests));
        CHECK(ChiSquare::against(counts, expected_prefixes()).excess() < 1.0);
        CHECK(ChiSquare::between(counts, of_plain).excess() < 1.0);
        const SpeculationStats stats = *drawing.engine->status().speculation;
        CHECK(drawing.drafts->n_drawn > kRequests / 2);
        CHECK(drawing.drafts->n_drawn_trees == 0);
        CHECK(stats.n_accepted > stats.n_drafted / 3);
        CHECK(stats.n_accepted < stats.n_drafted);
    }
}

TEST_CASE("and a rule that bends it is found out") {
    const std::vector<Request> requests = sampling_requests(kRequests);
    for (const Rule rule : {Rule::keeps_all, Rule::replaces_by_target}) {
        Setup bent(true, rule);
        CHECK(ChiSquare::against(prefix_matches(bent.answers(requests)), expected_prefixes()).excess() > 1.0);
    }
}

TEST_CASE("a drawn draft is kept more often than a matched one") {
    std::vector<double> shares;
    for (const bool draws : {false, true}) {
        Setup s(draws);
        s.answers(sampling_requests(2000));
        const SpeculationStats stats = *s.engine->status().speculation;
        shares.push_back(static_cast<double>(stats.n_accepted) / static_cast<double>(stats.n_drafted));
    }
    CHECK(shares[1] > 1.3 * shares[0]);
}

TEST_CASE("the same seeds give the same tokens, and a request that is taken up again goes on with its draws") {
    const std::vector<Request> requests = sampling_requests(200);
    Setup first(true);
    Setup second(true);
    const std::vector<Tokens> answers = first.answers(requests);
    CHECK(second.answers(requests) == answers);
    // Taken up behind their first token: what stood in a draft then comes from the prompt now, by another draw.
    std::vector<Request> resumed = requests;
    std::vector<Tokens> rests;
    for (std::size_t i = 0; i < resumed.size(); ++i) {
        Request& r = resumed[i];
        r.n_generated_before = 1;
        r.prompt.push_back(answers[i].front());
        --r.n_generate;
        rests.emplace_back(answers[i].begin() + 1, answers[i].end());
    }
    Setup third(true);
    Setup fourth(true);
    const std::vector<Tokens> resumed_answers = third.answers(resumed);
    CHECK(fourth.answers(resumed) == resumed_answers);
    CHECK(resumed_answers != rests);
    ChiSquare::Counts before;
    ChiSquare::Counts after;
    for (const Tokens& rest : rests) ++before[rest.front()];
    for (const Tokens& rest : resumed_answers) ++after[rest.front()];
    CHECK(ChiSquare::between(before, after).excess() < 1.0);
}

TEST_CASE("who does not sample, or under constraints, is matched: the tokens are those of plain decoding") {
    std::vector<Request> constrained = sampling_requests(200);
    for (Request& r : constrained) r.constraint.grammar = "root ::= [a-z]";
    for (const std::vector<Request>& requests : {sampling_requests(200, 0.0F), constrained}) {
        Setup plain(std::nullopt);
        Setup drawing(true);
        CHECK(drawing.answers(requests) == plain.answers(requests));
        CHECK(drawing.drafts->n_drawn == 0);
        CHECK(drawing.engine->status().speculation->n_drafted > 0);
    }
    Setup plain(std::nullopt);
    Setup matching(false);
    CHECK(matching.answers(sampling_requests(200)) == plain.answers(sampling_requests(200)));
    CHECK(matching.drafts->n_drawn == 0);
}

TEST_SUITE_END();
