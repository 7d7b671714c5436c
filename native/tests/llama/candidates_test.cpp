// Tests of the candidates that a row of logits is cut down to: llama.cpp's chain makes of them exactly what it makes of
// a table of the whole vocabulary, equal logits included, and picks the same token.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama/decoding/row_scan.h"
#include "llama/sampling/candidates.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::llama;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct ChainFree {
    void operator()(llama_sampler* chain) const { llama_sampler_free(chain); }
};
using Chain = std::unique_ptr<llama_sampler, ChainFree>;

struct ChainCase {
    FirstCut cut;
    float top_p = 1;
    float min_p = 0;
    float repeat = 1;
    float presence = 0;
    std::vector<llama_logit_bias> biases;
    Tokens last;
    std::uint32_t seed = 1;
};

Chain make_chain(const ChainCase& c, std::size_t n_vocab) {
    const auto n = static_cast<std::int32_t>(n_vocab);
    Chain chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    const auto add = [&](llama_sampler* link) { llama_sampler_chain_add(chain.get(), link); };
    if (!c.biases.empty()) {
        add(llama_sampler_init_logit_bias(n, static_cast<std::int32_t>(c.biases.size()), c.biases.data()));
    }
    if (c.repeat != 1 || c.presence != 0) add(llama_sampler_init_penalties(n, 64, c.repeat, 0.0F, c.presence));
    if (c.cut.kind == FirstCut::Kind::top_k) add(llama_sampler_init_top_k(c.cut.top_k));
    if (c.top_p < 1) add(llama_sampler_init_top_p(c.top_p, 0));
    if (c.min_p > 0) add(llama_sampler_init_min_p(c.min_p, 0));
    add(llama_sampler_init_temp_ext(c.cut.kind == FirstCut::Kind::largest ? 0.0F : 0.7F, 0, 1));
    add(c.cut.kind == FirstCut::Kind::largest ? llama_sampler_init_greedy() : llama_sampler_init_dist(c.seed));
    for (const Token token : c.last) llama_sampler_accept(chain.get(), token);
    return chain;
}

Tokens touched(const ChainCase& c) {
    Tokens tokens = c.last;
    for (const llama_logit_bias& bias : c.biases) tokens.push_back(bias.token);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
}

// What is left for the draw must be the same, each entry; of greedy chains the rest has no more meaning.
void check_same(const std::vector<float>& logits, const ChainCase& c) {
    std::vector<llama_token_data> table;
    for (std::size_t i = 0; i < logits.size(); ++i) table.push_back({static_cast<Token>(i), logits[i], 0});
    llama_token_data_array whole = {table.data(), table.size(), -1, false};
    llama_sampler_apply(make_chain(c, logits.size()).get(), &whole);

    Candidates candidates;
    REQUIRE(candidates.take(logits, c.cut, touched(c)));
    llama_token_data_array& few = candidates.array();
    const Chain chain = make_chain(c, logits.size());
    for (int i = candidates.is_cut() ? 1 : 0; i < llama_sampler_chain_n(chain.get()); ++i) {
        llama_sampler_apply(llama_sampler_chain_get(chain.get(), i), &few);
    }
    REQUIRE(few.data[few.selected].id == whole.data[whole.selected].id);
    if (c.cut.kind == FirstCut::Kind::largest) return;
    CAPTURE(static_cast<int>(c.cut.kind));
    CAPTURE(c.cut.top_k);
    CAPTURE(logits.size());
    REQUIRE(few.size == whole.size);
    REQUIRE(std::equal(few.data, few.data + few.size, whole.data,
                       [](const auto& a, const auto& b) { return a.id == b.id && a.logit == b.logit && a.p == b.p; }));
}

enum class Shape { spread, peaked, flat, tied, high, low, rising, falling, masked, kShapes };

std::vector<float> random_logits(std::mt19937& random, std::size_t n, Shape shape) {
    std::normal_distribution<float> normal(0, 1 + static_cast<float>(random() % 8));
    std::vector<float> logits(n);
    for (float& logit : logits) logit = normal(random);
    switch (shape) {
        case Shape::peaked: logits[random() % n] = 40; break;
        case Shape::flat: std::fill(logits.begin(), logits.end(), 1.5F); break;
        case Shape::tied:
            for (float& logit : logits) logit = std::round(logit);
            break;
        case Shape::high:
            for (float& logit : logits) logit += 30;
            break;
        case Shape::low:
            for (float& logit : logits) logit -= 50;
            break;
        case Shape::rising: std::sort(logits.begin(), logits.end()); break;
        case Shape::falling: std::sort(logits.rbegin(), logits.rend()); break;
        case Shape::masked:
            for (float& logit : logits) logit = random() % 3 == 0 ? logit : -kInfinity;
            break;
        default: break;
    }
    return logits;
}

void add_touched(std::mt19937& random, std::size_t n, ChainCase& c) {
    const auto any = [&] { return static_cast<Token>(random() % n); };
    if (random() % 2 == 0) {
        c.repeat = 1.1F + static_cast<float>(random() % 3);
        c.presence = static_cast<float>(random() % 3);
        for (std::size_t i = random() % 100; i > 0; --i) c.last.push_back(random() % 4 == 0 ? 3 : any());
        if (c.last.size() > 64) c.last.erase(c.last.begin(), c.last.end() - 64);
    }
    if (random() % 2 == 0) {
        for (std::size_t i = random() % 20; i > 0; --i) {
            const Token token = any();
            const bool is_named =
                std::any_of(c.biases.begin(), c.biases.end(), [&](const auto& bias) { return bias.token == token; });
            constexpr std::array<float, 4> kBiases = {-kInfinity, -5, 5, 1e8F};
            if (!is_named) c.biases.push_back({token, kBiases[random() % (i % 7 == 0 ? 4 : 3)]});
        }
    }
}

}  // namespace

TEST_CASE("a chain makes of the candidates what it makes of the whole vocabulary") {
    std::mt19937 random(7);
    for (int round = 0; round < 2000; ++round) {
        CAPTURE(round);
        const auto shape = static_cast<Shape>(random() % static_cast<unsigned>(Shape::kShapes));
        CAPTURE(static_cast<int>(shape));
        const std::size_t n = 1 + random() % (round % 8 == 0 ? 20000 : 3000);
        const std::vector<float> logits = random_logits(random, n, shape);
        if (std::all_of(logits.begin(), logits.end(), [](float logit) { return logit == -kInfinity; })) continue;
        ChainCase c;
        c.seed = random();
        add_touched(random, n, c);
        constexpr std::array<std::int32_t, 12> kCounts = {1, 2, 5, 20, 40, 64, 127, 128, 129, 200, 1000, 100000};
        switch (random() % 4) {
            case 0: c.cut = {FirstCut::Kind::largest}; break;
            case 1:
                c.min_p = random() % 2 == 0 ? 0.05F : 1.0F;
                c.cut = {FirstCut::Kind::min_p, 0, c.min_p};
                break;
            default:
                c.cut = {FirstCut::Kind::top_k, kCounts[random() % kCounts.size()]};
                if (random() % 2 == 0) c.top_p = 0.95F;
                if (random() % 2 == 0) c.min_p = 0.02F;
                break;
        }
        if (round % 5 == 0) {
            c = ChainCase();
            c.seed = random();
            c.top_p = random() % 2 == 0 ? 0.95F : 0.3F;
            if (random() % 2 == 0) c.min_p = 0.02F;
            c.cut = {FirstCut::Kind::top_p, 0, 0, c.top_p};
        }
        // Everything banned is refused before the chain is asked for a token.
        if (c.biases.size() >= n) c.biases.clear();
        check_same(logits, c);
    }
}

TEST_CASE("few candidates are left of a large vocabulary") {
    std::mt19937 random(8);
    const std::vector<float> logits = random_logits(random, 248320, Shape::spread);
    const Tokens few = {1, 70000, 248319};
    Candidates candidates;
    for (const FirstCut& cut : {FirstCut{FirstCut::Kind::top_k, 40}, FirstCut{FirstCut::Kind::largest},
                                FirstCut{FirstCut::Kind::min_p, 0, 0.05F}}) {
        REQUIRE(candidates.take(logits, cut, few));
        const llama_token_data_array& array = candidates.array();
        CHECK(array.size < 1000);
        const auto has = [&](Token token) {
            return std::any_of(array.data, array.data + array.size, [&](const auto& data) { return data.id == token; });
        };
        CHECK(std::all_of(few.begin(), few.end(), has));
        CHECK(std::is_sorted(array.data, array.data + array.size,
                             [](const auto& a, const auto& b) { return a.id < b.id; }));
    }
}

TEST_CASE("top-p alone cuts a row whose first few tokens are likely, and takes all of a flat one") {
    std::mt19937 random(9);
    std::vector<float> logits = random_logits(random, 50000, Shape::flat);
    Candidates candidates;
    const FirstCut cut = {FirstCut::Kind::top_p, 0, 0, 0.95F};
    REQUIRE(candidates.take(logits, cut, {}));
    CHECK(!candidates.is_cut());
    CHECK(candidates.array().size == logits.size());
    for (std::size_t i = 0; i < 30; ++i) logits[1000 * i + 7] = 20 - static_cast<float>(i) / 4;
    REQUIRE(candidates.take(logits, cut, {}));
    CHECK(candidates.is_cut());
    CHECK(candidates.array().size < 30);
    ChainCase c;
    c.cut = cut;
    c.top_p = cut.top_p;
    check_same(logits, c);
}

TEST_CASE("a NaN is never a candidate, and a row without a finite largest logit is refused") {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const Tokens some = {0, 70, 4095};
    for (const FirstCut& cut : {FirstCut{FirstCut::Kind::top_k, 40}, FirstCut{FirstCut::Kind::top_k, 300},
                                FirstCut{FirstCut::Kind::largest}, FirstCut{FirstCut::Kind::min_p, 0, 0.05F}}) {
        Candidates candidates;
        std::vector<float> logits(4096, kNan);
        for (std::size_t i = 64; i < 1000; ++i) logits[i] = static_cast<float>(i % 100);
        REQUIRE(candidates.take(logits, cut, some));
        const llama_token_data_array& array = candidates.array();
        CHECK(std::none_of(array.data, array.data + array.size,
                           [](const auto& data) { return data.logit != data.logit; }));
        CHECK(std::any_of(array.data, array.data + array.size, [](const auto& data) { return data.logit == 99; }));
        for (const float broken : {kNan, -kInfinity, kInfinity}) {
            for (const std::size_t n_broken : {std::size_t{1}, logits.size()}) {
                if (n_broken == 1 && broken != kInfinity) continue;
                std::fill(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(n_broken), broken);
                const Result<void> refused = candidates.take(logits, cut, {});
                REQUIRE(!refused);
                CHECK(refused.error().code == ErrorCode::internal);
            }
        }
    }
}

}  // TEST_SUITE("llama")
