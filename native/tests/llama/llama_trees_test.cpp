// Tests of trees on libllama: each token of a tree sees what leads to it and nothing beside it, and when it is known
// which way the text went, the memory is what computing that way alone would have left.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama/decoding/llama_decoder.h"
#include "llama/drafting/draft_sources.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "speculation/trees/draft_tree.h"
#include "test_paths.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::engine;

namespace {

constexpr std::int32_t kLanes = 3;
constexpr std::int32_t kTree = 24;
constexpr LaneId kFirst{0};
constexpr LaneId kSecond{1};
constexpr LaneId kReference{2};

using Logits = std::vector<float>;

std::string test_model(const std::string& name) { return std::string(LUCE_TEST_MODELS_DIR) + "/" + name + ".gguf"; }

Token some_token(std::mt19937& random) { return 60 + static_cast<Token>(random() % 800); }

Tokens some_tokens(std::mt19937& random, int n) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(some_token(random));
    return tokens;
}

// A lane's text up to the root, and a tree from there.
struct Grown {
    Tokens text;
    Tokens tokens;  // the root first
    std::vector<std::int32_t> parents;

    Slice slice(LaneId lane) const {
        return {lane, static_cast<Position>(text.size()), tokens, static_cast<std::int32_t>(tokens.size()), parents};
    }
};

Grown grow(Tokens text, std::mt19937& random, int n_drafted) {
    Grown grown{std::move(text), {some_token(random)}, {-1}};
    for (int i = 0; i < n_drafted; ++i) {
        grown.parents.push_back(static_cast<std::int32_t>(random() % grown.tokens.size()));
        grown.tokens.push_back(some_token(random));
    }
    return grown;
}

struct TreeSetup {
    explicit TreeSetup(const std::string& path, std::int32_t n_pool = 1024)
        : model(load(path, n_pool)), decoder(model, kLanes), device(model, kLanes) {}

    static llama::Model load(const std::string& path, std::int32_t n_pool) {
        static const llama::Backend backend;
        llama::ModelOptions options;
        options.path = path;
        options.n_ctx = n_pool;
        options.n_lanes = kLanes;
        options.n_threads = 1;
        options.n_batch = 512;
        options.n_draft_most = 15;
        options.n_tree = kTree;
        options.rollback_bytes = 1 << 24;
        Result<llama::Model> model = llama::Model::load(options, false, [] {});
        REQUIRE_MESSAGE(model.ok(), path);
        return std::move(model).value();
    }

    Logits logits(std::size_t row) const {
        const std::span<const float> found = decoder.logits(row);
        REQUIRE(found.size() == static_cast<std::size_t>(model.info().n_vocab));
        return {found.begin(), found.end()};
    }

    void decode(std::span<const Slice> slices) {
        const Result<void> decoded = decoder.decode(slices);
        REQUIRE_MESSAGE(decoded.ok(), (decoded ? "" : decoded.error().text));
    }

    void decode(LaneId lane, Position begin, const Tokens& tokens, std::int32_t n_logits = 1) {
        const Slice slice{lane, begin, tokens, n_logits};
        decode(std::span(&slice, 1));
    }

    // What follows the text if nothing else is there.
    Logits plainly(const Tokens& text) {
        decoder.forget(kReference);
        decode(kReference, 0, text);
        Logits found = logits(0);
        decoder.forget(kReference);
        return found;
    }

    llama::Model model;
    llama::LlamaDecoder decoder;
    llama::LlamaKvDevice device;
};

float distance(const Logits& a, const Logits& b) {
    float largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
}

// What a wrong token among those that are seen makes of the logits, as a measure for what counts as equal.
float difference_of_one_token(TreeSetup& s, std::mt19937& random) {
    Tokens text = some_tokens(random, 40);
    const Logits right = s.plainly(text);
    text[text.size() - 2] = text[text.size() - 2] == 60 ? 61 : 60;
    return distance(right, s.plainly(text));
}

Tokens text_at(const Grown& grown, const speculation::DraftTree& tree, std::size_t node) {
    Tokens text = grown.text;
    for (const speculation::NodeIndex at : tree.path_to(node)) text.push_back(grown.tokens[at]);
    return text;
}

}  // namespace

// gemma4's and laguna's sliding windows are far shorter than these texts, so cells outside them are overwritten.
TEST_CASE("each token of a tree sees what leads to it, and the way that is kept is all that stays") {
    for (const std::string name : {"qwen3", "gemma4", "qwen3moe", "laguna"}) {
        CAPTURE(name);
        TreeSetup s(test_model(name));
        REQUIRE(!s.device.traits().refusal);
        REQUIRE(s.decoder.limits().n_branches > 0);
        std::mt19937 random(7);
        const float most = difference_of_one_token(s, random) / 4;
        Tokens first = some_tokens(random, 180);
        Tokens second = some_tokens(random, 300);
        s.decode(kFirst, 0, first);
        s.decode(kSecond, 0, second);
        float furthest = 0;
        int n_compared = 0;
        int n_apart = 0;
        const auto compare = [&](const Logits& found, const Tokens& text) {
            const float apart = distance(found, s.plainly(text));
            furthest = std::max(furthest, apart);
            ++n_compared;
            n_apart += apart < most ? 0 : 1;
        };
        for (int round = 0; round < 12; ++round) {
            // A tree over what was shown to its lane, too, not computed by it.
            if (round == 6 && !s.device.traits().has_state()) {
                std::vector<memory::Cell> cells(first.size());
                REQUIRE(s.device.find(kFirst, 0, cells));
                s.device.hold(cells);
                s.device.forget(kFirst);
                s.device.show(kFirst, cells);
                s.device.release(cells);
            }
            const Grown of_first = grow(first, random, 1 + static_cast<int>(random() % kTree));
            const Grown of_second = grow(second, random, 1 + static_cast<int>(random() % kTree));
            const std::vector<Slice> slices = {of_first.slice(kFirst), of_second.slice(kSecond)};
            s.decode(slices);
            std::vector<Logits> rows;
            for (std::size_t i = 0; i < of_first.tokens.size() + of_second.tokens.size(); ++i)
                rows.push_back(s.logits(i));
            std::size_t row = 0;
            for (auto [grown, text, lane] : {std::tuple{&of_first, &first, kFirst}, {&of_second, &second, kSecond}}) {
                const auto tree = speculation::DraftTree::of(grown->tokens, grown->parents);
                const std::size_t last = random() % grown->tokens.size();
                std::vector<std::int32_t> path;
                for (const auto node : tree.path_to(last)) path.push_back(static_cast<std::int32_t>(node));
                REQUIRE(s.decoder.keep(lane, path));
                *text = text_at(*grown, tree, last);
                std::vector<memory::Cell> cells(text->size());
                CHECK(s.device.find(lane, 0, cells));
            }
            CHECK(s.device.usage().n_used_cells == static_cast<std::int32_t>(first.size() + second.size()));
            for (const Grown* grown : {&of_first, &of_second}) {
                const auto tree = speculation::DraftTree::of(grown->tokens, grown->parents);
                for (std::size_t node = 0; node < grown->tokens.size(); ++node, ++row) {
                    if (node != 0 && random() % 4 != 0) continue;
                    compare(rows[row], text_at(*grown, tree, node));
                }
            }
            // And the text goes on as if there had been no tree.
            const Token next = some_token(random);
            s.decode(kFirst, static_cast<Position>(first.size()), {next});
            const Logits after = s.logits(0);
            first.push_back(next);
            compare(after, first);
        }
        MESSAGE(name << ": " << n_apart << " of " << n_compared << " apart, by " << furthest << " (" << most << ")");
        CHECK(n_compared > 50);
        // A rounding sends a token to another expert where random routers come to a near-tie.
        CHECK(n_apart <= (name == "qwen3moe" ? n_compared / 10 : 0));
        s.device.forget(kFirst);
        s.device.forget(kSecond);
        CHECK(s.device.usage().n_used_cells == 0);
    }
}

TEST_CASE("what a lane without a tree computes in the same call is its own") {
    TreeSetup s(test_model("qwen3"));
    std::mt19937 random(9);
    const Tokens text = some_tokens(random, 50);
    const Tokens prompt = some_tokens(random, 40);
    s.decode(kFirst, 0, text);
    const Grown grown = grow(text, random, 20);
    const std::vector<Slice> slices = {grown.slice(kFirst), Slice{kSecond, 0, prompt, 1}};
    s.decode(slices);
    const Logits found = s.logits(grown.tokens.size());
    REQUIRE(s.decoder.keep(kFirst, std::vector<std::int32_t>{0}));
    CHECK(distance(found, s.plainly(prompt)) < difference_of_one_token(s, random) / 4);
    CHECK(s.device.usage().n_used_cells == 50 + 1 + 40);
}

TEST_CASE("what drafters read of the model is that of the way that was kept") {
    for (const std::string name : {"dflash-qwen3", "eagle3-qwen3"}) {
        CAPTURE(name);
        TreeSetup s(test_model("qwen3"));
        llama::DraftModelOptions options;
        options.path = test_model("drafts/" + name);
        options.n_lanes = kLanes;
        options.n_most = 5;
        const Result<llama::OpenedDraft> opened = llama::open_draft_model(options, s.model);
        REQUIRE(opened.ok());
        speculation::DraftSource& source = *opened.value().source;
        std::mt19937 random(13);
        Tokens text = some_tokens(random, 40);
        const auto follow = [&](LaneId lane, std::size_t n_new, speculation::BatchRows rows) {
            const auto n = static_cast<std::int32_t>(text.size());
            source.follow(lane, text, n, static_cast<std::int32_t>(n_new), rows);
        };
        for (const LaneId lane : {kFirst, kSecond}) {
            source.begin(lane, text, 0);
            s.decode(lane, 0, text);
            follow(lane, text.size(), 0);
        }
        for (int round = 0; round < 5; ++round) {
            const Grown grown = grow(text, random, 12);
            const auto tree = speculation::DraftTree::of(grown.tokens, grown.parents);
            std::vector<std::int32_t> path;
            Tokens on_path;
            for (const auto node : tree.path_to(9 + random() % 4)) {
                path.push_back(static_cast<std::int32_t>(node));
                on_path.push_back(grown.tokens[node]);
            }
            const Slice slice = grown.slice(kFirst);
            s.decode(std::span(&slice, 1));
            REQUIRE(s.decoder.keep(kFirst, path));
            const auto begin = static_cast<Position>(text.size());
            text.insert(text.end(), on_path.begin(), on_path.end());
            follow(kFirst, path.size(), {0, path});
            s.decode(kSecond, begin, on_path);
            follow(kSecond, path.size(), 0);

            Tokens asked = text;
            asked.push_back(some_token(random));
            const std::vector<speculation::DraftAsk> asks = {{kFirst, asked, 5}, {kSecond, asked, 5}};
            std::vector<speculation::Draft> drafts;
            REQUIRE(source.draft(asks, drafts));
            REQUIRE(!drafts[0].tokens.empty());
            CHECK(drafts[0].tokens == drafts[1].tokens);
            for (std::size_t i = 0; i < drafts[0].tokens.size(); ++i) {
                CHECK(drafts[0].confidence[i] == doctest::Approx(drafts[1].confidence[i]).epsilon(0.02));
            }
        }
    }
}

TEST_CASE("a tree for which there is no room changes nothing, and leaves no branch behind") {
    TreeSetup s(test_model("qwen3"), 256);
    std::mt19937 random(11);
    Tokens text = some_tokens(random, 240);
    s.decode(kFirst, 0, text);
    const Grown grown = grow(text, random, kTree);
    const Slice slice = grown.slice(kFirst);
    const Result<void> decoded = s.decoder.decode(std::span(&slice, 1));
    REQUIRE(!decoded);
    CHECK(decoded.error().code == ErrorCode::no_room);
    CHECK(s.device.usage().n_used_cells == 240);
    text.push_back(some_token(random));
    s.decode(kFirst, 240, {text.back()});
    const Logits found = s.logits(0);
    s.decoder.forget(kFirst);
    CHECK(s.device.usage().n_used_cells == 0);
    CHECK(distance(found, s.plainly(text)) < difference_of_one_token(s, random) / 4);
}

TEST_CASE("models with recurrent state take no trees and say why; without a budget nobody does") {
    const TreeSetup s(test_model("qwen35"));
    CHECK(s.decoder.limits().n_branches == 0);
    REQUIRE(s.model.info().tree_refusal);
    CHECK(s.model.info().tree_refusal->find("state") != std::string::npos);
    CHECK(s.model.info().n_logits == kLanes * (1 + 15));
}

}  // TEST_SUITE("llama")
