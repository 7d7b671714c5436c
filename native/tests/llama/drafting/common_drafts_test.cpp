// Tests of the drafts that run token by token on libllama, on random models of each kind: they draft what llama.cpp's
// own driver drafts, whatever way the text came to them, and what does not fit its target is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <llama.h>

#include "llama/drafting/common_drafts.h"
#include "llama/gguf_check/draft_fit.h"
#include "tests/llama/drafting/speculating.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::draft_tests;

namespace {

// Our EAGLE-3 has a pair more than llama.cpp's, at the start, so that each position has a row: not quite the same
// drafts. The last one has recurrent state of its own.
const std::vector<Pair> kPairs = {
    {"qwen3", "simple-qwen3", "draft-simple"},   {"qwen35", "mtp-qwen35", "draft-mtp"},
    {"gemma4", "assistant-gemma4", "draft-mtp"}, {"qwen3", "eagle3-qwen3", nullptr},
    {"qwen35", "eagle3-qwen35", nullptr},        {"qwen35", "../qwen35", nullptr},
};

using Ours = Speculating<llama::CommonDrafts>;

}  // namespace

TEST_CASE("drafts are those of llama.cpp's own driver") {
    for (const Pair& pair : kPairs) {
        if (pair.llama_type != nullptr) check_same_drafts<llama::CommonDrafts>(pair, 12);
    }
}

TEST_CASE("a model that drafts for itself is right") {
    for (const char* name : {"qwen3", "qwen35", "gemma4"}) {
        CAPTURE(name);
        Ours setup(name, std::string("../") + name);
        CHECK(setup.drafts->kind() == llama::DraftKind::simple);
        setup.start(kFirst, some_tokens(90, 7));
        setup.start(kSecond, some_tokens(75, 31));
        std::int32_t n_right = 0;
        for (std::int32_t step = 0; step < 10; ++step) {
            const std::vector<Draft> found = setup.draft({kFirst, kSecond});
            setup.verify(found, step % (kMost + 1), &n_right);
        }
        // A near tie goes the other way now and then: batches of other shapes round otherwise.
        CHECK(n_right >= 2 * 10 * kMost * 9 / 10);
    }
}

TEST_CASE("a draft does not depend on how its text was read nor on who else drafts") {
    for (const Pair& pair : kPairs) {
        CAPTURE(pair.draft);
        Ours at_once(pair.target, pair.draft);
        at_once.start(kFirst, some_tokens(150, 5));
        const Draft alone = at_once.draft({kFirst})[0];
        CHECK(alone.tokens.size() == kMost);
        CHECK(at_once.draft({kFirst})[0].tokens == alone.tokens);
        const Tokens shorter = at_once.draft({kFirst}, 2)[0].tokens;
        CHECK(shorter == Tokens(alone.tokens.begin(), alone.tokens.begin() + 2));

        Ours in_parts(pair.target, pair.draft);
        in_parts.start(kSecond, some_tokens(90, 3));
        in_parts.start(kThird, some_tokens(150, 5), 47);
        in_parts.verify(in_parts.draft({kSecond}), 2);
        const std::vector<Draft> both = in_parts.draft({kThird, kSecond});
        CHECK(text_of(both[0].tokens) == text_of(alone.tokens));
        CHECK(both[0].lane == kThird);
        CHECK(both[1].lane == kSecond);
        CHECK(both[1].tokens.size() == kMost);
    }
}

TEST_CASE("drafts go on from what was kept of a lane as if nothing had happened") {
    for (const Pair& pair : kPairs) {
        CAPTURE(pair.draft);
        Ours setup(pair.target, pair.draft);
        setup.start(kFirst, some_tokens(100, 7));
        setup.verify(setup.draft({kFirst}), 3);
        const Result<std::vector<std::uint8_t>> state = setup.drafts->save_state(kFirst);
        REQUIRE(state.ok());
        CHECK(state.value().size() == setup.drafts->state_bytes());
        Bytes device_state;
        if (setup.drafts->has_cells() && setup.drafts->device().traits().has_state()) {
            REQUIRE(setup.drafts->device().save_state(kFirst, device_state, nullptr));
        }
        const Draft before = setup.draft({kFirst})[0];
        REQUIRE(before.tokens.size() == kMost);

        const auto n_computed = static_cast<Position>(setup.text(kFirst).size()) - 1;
        const bool state_first = &pair - kPairs.data() > 1;  // either order
        if (setup.drafts->has_cells()) {
            llama::LlamaKvDevice& device = setup.drafts->device();
            Cells cells(static_cast<std::size_t>(n_computed));
            REQUIRE(device.find(kFirst, 0, cells));
            Bytes rows(cells.size() * device.traits().row_bytes);
            REQUIRE(device.read(cells, rows, nullptr));
            device.settle();
            setup.drafts->forget(kFirst);
            CHECK_FALSE(device.find(kFirst, 0, cells).ok());
            const std::span<const Token> computed(setup.text(kFirst).data(), cells.size());
            REQUIRE(device.write(kFirst, 0, computed, rows, n_computed, cells));
            if (device.traits().has_state()) REQUIRE(device.load_state(kFirst, device_state));
        }
        if (state_first) REQUIRE(setup.drafts->load_state(kFirst, state.value()));
        setup.drafts->begin(kFirst, setup.text(kFirst), n_computed);
        if (!state_first) REQUIRE(setup.drafts->load_state(kFirst, state.value()));
        const Draft after = setup.draft({kFirst})[0];
        CHECK(text_of(after.tokens) == text_of(before.tokens));
        CHECK(after.confidence == before.confidence);
        std::vector<std::uint8_t> damaged = state.value();
        damaged.push_back(0);
        CHECK_FALSE(setup.drafts->load_state(kFirst, damaged).ok());
    }
}

TEST_CASE("a row for each position stands in the draft's memory once it has caught up") {
    for (const Pair& pair : kPairs) {
        CAPTURE(pair.draft);
        Ours setup(pair.target, pair.draft);
        CHECK(setup.drafts->has_cells() == (pair.draft != "assistant-gemma4"));
        if (!setup.drafts->has_cells()) continue;
        setup.start(kFirst, some_tokens(33, 7));
        setup.verify(setup.draft({kFirst}), 1);
        REQUIRE(setup.drafts->catch_up(kFirst));
        Cells cells(setup.text(kFirst).size() - 1);
        CHECK(setup.drafts->device().find(kFirst, 0, cells).ok());
        CHECK_FALSE(
            setup.drafts->device().find(kFirst, static_cast<Position>(cells.size()), std::span(cells).first(1)).ok());
        setup.drafts->unload();
        REQUIRE(setup.drafts->reload());
        setup.start(kSecond, some_tokens(33, 7));
        CHECK(setup.draft({kSecond})[0].tokens.size() == kMost);
    }
}

TEST_CASE("a lane whose text was missed drafts no more until it begins anew") {
    Ours setup("qwen35", "mtp-qwen35");
    setup.start(kFirst, some_tokens(20, 1));
    const auto n = static_cast<std::int32_t>(setup.text(kFirst).size());
    setup.drafts->follow(kFirst, setup.text(kFirst), n + 5, 1, 0);
    CHECK(setup.draft({kFirst})[0].tokens.empty());
    CHECK_FALSE(setup.drafts->catch_up(kFirst).ok());
    setup.drafts->forget(kFirst);
    llama_memory_seq_rm(llama_get_memory(setup.model.context()), 0, -1, -1);
    setup.start(kFirst, some_tokens(20, 1));
    CHECK(setup.draft({kFirst})[0].tokens.size() == kMost);
}

// It drafts in the target's cells.
TEST_CASE("a pool that is full for a moment costs an assistant nothing but the drafts of that moment") {
    Ours setup("gemma4", "assistant-gemma4");
    setup.start(kFirst, some_tokens(20, 1));
    const Draft before = setup.draft({kFirst})[0];
    REQUIRE(before.tokens.size() == kMost);
    llama_memory_t memory = llama_get_memory(setup.model.context());
    const auto fill = [&](std::int32_t n) {
        setup.batch->clear();
        const Position first = llama_memory_seq_pos_max(memory, 1) + 1;
        for (Position i = 0; i < n; ++i) setup.batch->add(7, first + i, 1, i + 1 == n);
        return llama_process(setup.model.context(), LLAMA_PROCESS_TYPE_DECODE, setup.batch->get()) == 0;
    };
    for (std::int32_t n = 128; n > 0; n = fill(n) ? n : n / 2) {
    }
    std::vector<Draft> none;
    const DraftAsk ask{kFirst, setup.text(kFirst), kMost};
    CHECK_FALSE(setup.drafts->draft(std::span(&ask, 1), none).ok());
    CHECK(none.empty());
    REQUIRE(llama_memory_seq_rm(memory, 1, -1, -1));
    CHECK(setup.draft({kFirst})[0].tokens == before.tokens);
}

TEST_CASE("a draft that does not fit its target is refused with the reason") {
    struct Misfit {
        const char* target;
        std::string path;
        const char* reason;
    };
    const std::vector<Misfit> misfits = {
        {"qwen3", draft_path("other-vocabulary"), "vocabulary is another one"},
        {"qwen3", draft_path("eagle3-deep"), "reads layer 99 of a model with 4"},
        {"qwen3", draft_path("eagle3-qwen35"), "reads layer 8 of a model with 4"},
        {"qwen3", draft_path("mtp-qwen35"), "MTP heads of a qwen35 model"},
        {"qwen3", draft_path("assistant-gemma4"), "assistant of Gemma 4"},
        {"qwen3", draft_path("dflash-qwen3"), "DFlash"},
        {"qwen3", test_model("no_vocab"), "without texts"},
        {"qwen3", "", "no MTP heads"},
        {"qwen3", draft_path("not-there"), "not-there"},
    };
    for (const Misfit& misfit : misfits) {
        CAPTURE(misfit.path);
        const llama::Model target = load_target(misfit.target);
        const auto loaded = llama::CommonDrafts::load(draft_options(misfit.path), target);
        REQUIRE_FALSE(loaded.ok());
        CHECK(loaded.error().code == ErrorCode::start_failed);
        CHECK_MESSAGE(loaded.error().text.find(misfit.reason) != std::string::npos, loaded.error().text);
    }
}

TEST_CASE("what a target hands out is known before it is asked for") {
    const std::vector<std::int32_t> layers = {0, 2, 3};
    for (const char* name : {"qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"}) {
        CAPTURE(name);
        const llama::Model target = load_target(name);
        const Result<void> given = llama::check_target_gives(target.context(), layers, false);
        // A tree of the user's own may lack our patch.
        const bool may_lack = std::string(name) == "laguna";
        CHECK_MESSAGE((given.ok() || (may_lack && given.error().text.find("cmake/patches") != std::string::npos)),
                      (given ? "" : given.error().text));
        const bool has_hidden = std::string(name).starts_with("qwen35") || std::string(name) == "gemma4";
        CHECK(llama::check_target_gives(target.context(), {}, true).ok() == has_hidden);
        const Token token = 10;
        common_batch batch(target.context());
        batch.add(token, 0, 0, true);
        CHECK(llama_process(target.context(), LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0);
    }
}

TEST_CASE("what a file is as a draft shows in its header") {
    using llama::DraftKind;
    const std::int32_t n_embd = 128;
    CHECK(llama::draft_kind_of(draft_path("dflash-qwen3"), n_embd).value() == DraftKind::dflash);
    CHECK(llama::draft_kind_of(draft_path("eagle3-qwen3"), n_embd).value() == DraftKind::eagle3);
    CHECK(llama::draft_kind_of(draft_path("assistant-gemma4"), n_embd).value() == DraftKind::assistant);
    CHECK(llama::draft_kind_of(draft_path("mtp-qwen35"), n_embd).value() == DraftKind::mtp);
    CHECK(llama::draft_kind_of(draft_path("simple-qwen3"), n_embd).value() == DraftKind::simple);
    // A whole model with heads: its heads for a target of its size, a plain draft for others.
    CHECK(llama::draft_kind_of(test_model("qwen35_mtp"), n_embd).value() == DraftKind::mtp);
    CHECK(llama::draft_kind_of(test_model("qwen35_mtp"), 2 * n_embd).value() == DraftKind::simple);
    CHECK_FALSE(llama::draft_kind_of(draft_path("not-there"), n_embd).ok());
}

}  // TEST_SUITE("llama")
