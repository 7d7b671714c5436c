// Tests of the engine with drafts that have branches: whatever tree is proposed, the answer is the one of plain
// decoding, and nothing of a tree is left behind but the way that the text took.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "speculation/trees/tree_drafts.h"
#include "tests/engine/engine_outcome.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/fake_sampler.h"

TEST_SUITE("engine") {

using namespace luce;
using namespace luce::engine;
using namespace luce::tests;

namespace {

constexpr int kTree = 12;      // tokens of a tree
constexpr int kBranches = 10;  // that a call may have beside one of each lane
constexpr int kDeepest = 7;

// Proposes trees; checks what it is asked and told of the lanes' texts, and that what it would read of the model is of
// the tokens that were accepted.
class TreeDrafts : public speculation::DraftSource {
public:
    explicit TreeDrafts(const FakeModel& model) : model_(model) {}

    const speculation::SourceTraits& traits() const override { return traits_; }

    Result<void> draft(std::span<const speculation::DraftAsk> asks, std::vector<speculation::Draft>& drafts) override {
        for (const speculation::DraftAsk& ask : asks) {
            if (n_followed_[ask.lane] + 1 != static_cast<std::int32_t>(ask.text.size()))
                misuse = "a gap before a draft";
            if (ask.n_most < 1 || ask.n_most > kTree || ask.n_deepest < 1 ||
                (ask.n_leaves > 1 && ask.n_deepest > kDeepest)) {
                misuse = "a tree of an odd size is asked for";
            }
            drafts.push_back(tree_of(ask));
        }
        return {};
    }

    void follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                speculation::BatchRows rows) override {
        if (n_followed_[lane] + n_new != n_computed) misuse = "positions are left out";
        std::uint64_t hash = hash_text(Tokens(text.begin(), text.begin() + n_computed - n_new));
        for (std::int32_t i = 0; i < n_new; ++i) {
            hash = hash_on(hash, text[static_cast<std::size_t>(n_computed - n_new + i)]);
            if (model_.row_hashes.at(rows[static_cast<std::size_t>(i)]) != hash) misuse = "a row of another token";
        }
        n_followed_[lane] = n_computed;
    }
    void begin(LaneId lane, std::span<const Token>, std::int32_t n_computed) override {
        n_followed_[lane] = n_computed;
    }
    void forget(LaneId lane) override { n_followed_.erase(lane); }

    std::optional<std::string> misuse;

private:
    virtual speculation::Draft tree_of(const speculation::DraftAsk& ask) = 0;

    speculation::SourceTraits traits_{"trees", kTree, false, true};
    const FakeModel& model_;
    std::map<LaneId, std::int32_t> n_followed_;
};

// Any tree, in any order that puts parents first; so many of its tokens are what the model will say there.
class RandomTrees final : public TreeDrafts {
public:
    RandomTrees(const FakeModel& model, std::uint32_t seed, int percent_right)
        : TreeDrafts(model), random_(seed), percent_right_(percent_right) {}

private:
    speculation::Draft tree_of(const speculation::DraftAsk& ask) override {
        speculation::Draft draft;
        draft.lane = ask.lane;
        std::vector<Tokens> texts = {Tokens(ask.text.begin(), ask.text.end())};  // up to the root and to each node
        std::vector<int> n_children(1);
        int n_leaves = 1;
        const int n_tries = static_cast<int>(random_() % static_cast<unsigned>(ask.n_most + 1));
        for (int i = 0; i < n_tries; ++i) {
            const std::size_t parent = random_() % texts.size();
            const bool adds_leaf = n_children[parent] > 0;
            if (texts[parent].size() >= ask.text.size() + static_cast<std::size_t>(ask.n_deepest)) continue;
            if (adds_leaf && n_leaves == ask.n_leaves) continue;
            const bool is_right = static_cast<int>(random_() % 100) < percent_right_;
            const Token token = is_right ? next_token(texts[parent]) : static_cast<Token>(random_() % kVocab);
            if (is_child(draft, parent, token)) continue;
            n_leaves += adds_leaf ? 1 : 0;
            ++n_children[parent];
            n_children.push_back(0);
            draft.tokens.push_back(token);
            draft.parents.push_back(static_cast<std::int32_t>(parent) - 1);
            draft.confidence.push_back(static_cast<float>(random_() % 100) / 100.0F);
            texts.push_back(texts[parent]);
            texts.back().push_back(token);
        }
        return draft;
    }

    static bool is_child(const speculation::Draft& draft, std::size_t parent, Token token) {
        for (std::size_t i = 0; i < draft.tokens.size(); ++i) {
            if (draft.parents[i] + 1 == static_cast<std::int32_t>(parent) && draft.tokens[i] == token) return true;
        }
        return false;
    }

    std::mt19937 random_;
    int percent_right_;
};

// What block diffusion names: several tokens a place. The right one is always the second.
class SecondBest final : public TreeDrafts {
public:
    using TreeDrafts::TreeDrafts;

private:
    speculation::Draft tree_of(const speculation::DraftAsk& ask) override {
        Tokens text(ask.text.begin(), ask.text.end());
        std::vector<std::vector<speculation::Candidate>> places;
        for (int i = 0; i < std::min(3, ask.n_deepest); ++i) {
            const Token right = next_token(text);
            places.push_back({{(right + 1) % (kVocab - 1), 0.5F}, {right, 0.4F}});
            text.push_back(right);
        }
        return speculation::tree_draft(ask, places);
    }
};

struct TreeSetup {
    TreeSetup(DecoderLimits limits, EngineConfig config, bool is_adaptive = false)
        : decoder(limits), samplers(decoder), memory(decoder, nullptr, {"test", 1 << 20, 16, true}, clock) {
        speculation.n_most = kDeepest;
        speculation.n_tree = kTree;
        speculation.n_branches = limits.n_branches;
        speculation.is_adaptive = is_adaptive;
        engine_config = config;
    }

    template <typename Drafts, typename... Arguments>
    void open(Arguments... arguments) {
        auto source = std::make_unique<Drafts>(decoder, arguments...);
        drafts = source.get();
        speculation.sources.push_back(std::move(source));
        speculator.emplace(std::move(speculation), engine_config.n_lanes, clock);
        engine.emplace(decoder, samplers, memory, clock, engine_config, &*speculator);
    }

    void check() const {
        const auto wrong = engine->check_integrity();
        REQUIRE_MESSAGE(!wrong, (wrong ? *wrong : ""));
        REQUIRE_MESSAGE(!decoder.misuse, (decoder.misuse ? *decoder.misuse : ""));
        REQUIRE_MESSAGE(!drafts->misuse, (drafts->misuse ? *drafts->misuse : ""));
    }

    FakeModel decoder;
    FakeSamplers samplers;
    ManualClock clock;
    memory::KvCacheManager memory;
    SpeculationConfig speculation;
    EngineConfig engine_config;
    TreeDrafts* drafts = nullptr;
    std::optional<Speculator> speculator;
    std::optional<Engine> engine;
};

DecoderLimits limits_of(int n_pool) { return {kVocab, n_pool, 64, 64, false, 64, kBranches}; }

Tokens plain_answer(Tokens text, int n_generate, int n_ctx, std::optional<std::int32_t> end_at) {
    Tokens answer;
    while (static_cast<int>(answer.size()) < n_generate && static_cast<int>(text.size()) < n_ctx) {
        const bool is_end = end_at && static_cast<std::int32_t>(text.size()) >= *end_at;
        answer.push_back(is_end ? kEndToken : next_token(text));
        text.push_back(answer.back());
        if (is_end) break;
    }
    return answer;
}

}  // namespace

TEST_CASE("a tree finds what the best token of each place would have missed") {
    TreeSetup s(limits_of(512), {512, 1, 8});
    s.open<SecondBest>();
    std::mt19937 random(5);
    const Tokens prompt = random_prompt(random, 40);
    REQUIRE(s.engine->submit(request(1, prompt, 200)));
    Outcome answers;
    while (!s.engine->is_idle()) {
        answers.take(s.engine->step());
        s.check();
    }
    CHECK(answers.tokens.at(RequestKey{1}) == plain_answer(prompt, 200, 512, std::nullopt));
    // All that was accepted was accepted against a likelier one.
    const Speculation stats = *answers.finished.at(RequestKey{1}).speculation;
    CHECK(stats.n_accepted > 100);
    CHECK(s.decoder.n_kept_others == stats.n_accepted);
    CHECK(stats.n_steps + stats.n_accepted == 199);
    CHECK(stats.n_drafted > 2 * stats.n_accepted);
    CHECK(s.decoder.n_calls < 100);
}

TEST_CASE("a chain of the best tokens has none of it") {
    TreeSetup s(limits_of(512), {512, 1, 8});
    s.speculation.n_tree = 0;
    s.open<SecondBest>();
    REQUIRE(s.engine->submit(request(1, Tokens(40, 7), 100)));
    Outcome answers;
    while (!s.engine->is_idle()) answers.take(s.engine->step());
    CHECK(answers.tokens.at(RequestKey{1}) == plain_answer(Tokens(40, 7), 100, 512, std::nullopt));
    CHECK(answers.finished.at(RequestKey{1}).speculation->n_accepted == 0);
    CHECK(s.decoder.n_trees == 0);
}

// The controller learns that the first is wrong and the second right, and takes the way of the second ones alone.
TEST_CASE("with the controller what is likeliest of a tree is verified, whatever its source thinks") {
    TreeSetup s(limits_of(4096), {4096, 1, 8}, true);
    s.open<SecondBest>();
    REQUIRE(s.engine->submit(request(1, Tokens(40, 7), 2000)));
    Outcome answers;
    while (!s.engine->is_idle()) {
        s.decoder.on_decode = [&s](std::int32_t n_tokens) { s.clock.advance(0.01 + 0.0002 * n_tokens); };
        answers.take(s.engine->step());
        s.check();
    }
    CHECK(answers.tokens.at(RequestKey{1}) == plain_answer(Tokens(40, 7), 2000, 4096, std::nullopt));
    const Speculation stats = *answers.finished.at(RequestKey{1}).speculation;
    CHECK(stats.n_accepted > 1200);
    CHECK(10 * stats.n_accepted > 8 * stats.n_drafted);
    CHECK(s.decoder.n_trees > 0);
}

// Many requests in few lanes and a small pool, with cancels, suspensions, reused prompts, ends and limits in drafts.
TEST_CASE("random histories with random trees answer as plain decoding does") {
    std::int64_t n_trees = 0;
    std::int64_t n_kept_others = 0;
    std::uint64_t n_suspensions = 0;
    std::int32_t most_branches = 0;
    for (std::uint32_t seed = 0; seed < 80; ++seed) {
        std::mt19937 random(seed);
        const int n_lanes = 1 + static_cast<int>(random() % 4);
        const int n_pool = 256 + 64 * static_cast<int>(random() % 6);
        TreeSetup s(limits_of(n_pool), {256, n_lanes, 64});
        s.open<RandomTrees>(seed, static_cast<int>(random() % 101));
        if (random() % 2 == 0) s.samplers.end_at = 60 + static_cast<std::int32_t>(random() % 100);
        std::map<RequestKey, Tokens> expected;
        Outcome answers;
        const Tokens shared = random_prompt(random, 130);
        std::uint64_t key = 0;
        const auto submit_one = [&] {
            const auto n_shared = static_cast<std::ptrdiff_t>(random() % shared.size());
            Tokens prompt(shared.begin(), shared.begin() + n_shared);
            for (const Token token : random_prompt(random, 1 + static_cast<int>(random() % 40)))
                prompt.push_back(token);
            const int n_generate = static_cast<int>(random() % 120);
            const Request r = request(++key, prompt, n_generate);
            if (!s.engine->submit(r)) return;
            std::optional<std::int32_t> end_at;
            if (s.samplers.end_at) end_at = std::max(*s.samplers.end_at, static_cast<std::int32_t>(prompt.size()));
            expected[r.key] = plain_answer(prompt, n_generate, 256, end_at);
        };
        for (int i = 0; i < 12; ++i) submit_one();
        for (int i = 0; i < 5000 && !s.engine->is_idle(); ++i) {
            answers.take(s.engine->step());
            s.check();
            if (random() % 50 == 0 && key < 30) submit_one();
            if (random() % 20 == 0) {  // right after a tree
                const auto of = static_cast<RequestKey>(1 + random() % key);
                (void)s.engine->snapshot(static_cast<std::int32_t>(random() % 16), of);
                s.check();
            }
            if (random() % 80 == 0) {
                const auto victim = static_cast<RequestKey>(1 + random() % key);
                if (!answers.finished.contains(victim)) {
                    s.engine->cancel(victim);
                    const Tokens& got = answers.tokens[victim];
                    expected[victim].resize(std::min(got.size(), expected[victim].size()));
                }
            }
        }
        REQUIRE(s.engine->is_idle());
        CHECK(answers.failed.empty());
        for (const auto& [k, tokens] : expected) CHECK(answers.tokens[k] == tokens);
        CHECK(s.decoder.n_lanes_in_use() == 0);
        n_trees += s.decoder.n_trees;
        n_kept_others += s.decoder.n_kept_others;
        n_suspensions += s.engine->status().n_suspensions;
        most_branches = std::max(most_branches, s.decoder.most_branches);
    }
    CHECK(n_trees > 1000);
    CHECK(n_kept_others > 1000);
    CHECK(n_suspensions > 20);
    CHECK(most_branches == kBranches);
}

TEST_CASE("no room for a tree on the device: it is withdrawn, and nobody suspended") {
    TreeSetup s(limits_of(512), {512, 1, 8});
    s.open<SecondBest>();
    REQUIRE(s.engine->submit(request(1, Tokens(10, 7), 50)));
    Outcome answers;
    for (int i = 0; !s.engine->is_idle(); ++i) {
        if (i % 3 == 2) s.decoder.fail_next = Error{ErrorCode::no_room, "no cells"};
        answers.take(s.engine->step());
        s.check();
        if (s.decoder.fail_next) s.decoder.fail_next.reset();
        if (!answers.failed.empty()) break;  // a plain call that has no room has no way out
    }
    const Tokens expected = plain_answer(Tokens(10, 7), 50, 512, std::nullopt);
    const Tokens& got = answers.tokens.at(RequestKey{1});
    CHECK(got.size() > 10);
    CHECK(got == Tokens(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(got.size())));
    CHECK(s.engine->status().n_suspensions == 0);
}

}  // TEST_SUITE("engine")
