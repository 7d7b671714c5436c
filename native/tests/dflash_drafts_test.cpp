// Tests of DFlash drafts: when the features of a text are read makes no difference to what is drafted.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "llama/dflash_drafts.h"
#include "llama/llama_decoder.h"
#include "llama/logit_choice.h"
#include "tests/llama_memory.h"

TEST_SUITE_BEGIN("llama");

using namespace luce;
using namespace luce::memory_tests;

namespace {

constexpr std::int32_t kMost = 7;
constexpr std::size_t kPrompt = 75;
constexpr std::size_t kAnswer = 130;

llama::Model load_target() {
    static const llama::Backend backend;
    llama::ModelOptions options;
    options.path = test_model("qwen35");
    options.n_ctx = 1024;
    options.n_lanes = 2;
    options.n_threads = 1;
    options.n_batch = 256;
    options.n_draft_most = kMost;
    options.rollback_bytes = std::size_t{1} << 30;
    Result<llama::Model> model = llama::Model::load(options, false, [] {});
    REQUIRE_MESSAGE(model.ok(), "make the test models first: scripts/make_test_models.py build/test-models");
    return std::move(model).value();
}

// Two lanes of different lengths, decoded plainly side by side after their prompts.
class Following {
public:
    // `skips_from`, `skips_to`: of the texts' lengths, between which tokens are skipped.
    explicit Following(bool reads_meanwhile, std::size_t skips_from = 0, std::size_t skips_to = 0)
        : reads_meanwhile_(reads_meanwhile),
          skips_from_(skips_from),
          skips_to_(skips_to),
          model_(load_target()),
          decoder_(model_, 2) {
        llama::DraftModelOptions options;
        options.path = test_model("drafts/dflash-qwen35");
        options.n_lanes = 2;
        options.n_most = kMost;
        Result<std::unique_ptr<llama::DflashDrafts>> loaded = llama::DflashDrafts::load(options, model_);
        REQUIRE_MESSAGE(loaded.ok(), (loaded ? "" : loaded.error().text));
        drafts_ = std::move(loaded).value();
        for (std::size_t lane = 0; lane < 2; ++lane) {
            texts_.push_back(some_tokens(static_cast<std::int32_t>(kPrompt + 10 * lane), 5));
            const engine::Slice slice{static_cast<LaneId>(lane), 0, texts_[lane], 1};
            compute(std::span(&slice, 1));
            texts_[lane].push_back(best(0));
        }
        while (texts_[0].size() < kPrompt + kAnswer) {
            std::vector<engine::Slice> slices;
            for (std::size_t lane = 0; lane < 2; ++lane) {
                const auto last = static_cast<Position>(texts_[lane].size()) - 1;
                slices.push_back({static_cast<LaneId>(lane), last, std::span(texts_[lane]).last(1), 1});
            }
            compute(slices);
            for (std::size_t lane = 0; lane < 2; ++lane) texts_[lane].push_back(best(lane));
        }
    }

    std::vector<speculation::Draft> draft() {
        std::vector<speculation::DraftAsk> asks;
        for (std::size_t lane = 0; lane < 2; ++lane) asks.push_back({static_cast<LaneId>(lane), texts_[lane], kMost});
        std::vector<speculation::Draft> drafts;
        REQUIRE(drafts_->draft(asks, drafts).ok());
        return drafts;
    }

    void leave_out(LaneId lane, std::int32_t n) {
        const Tokens& text = texts_[static_cast<std::size_t>(lane)];
        drafts_->leave_out(lane, text, static_cast<std::int32_t>(text.size()) - 1, n);
    }

    // Each position has a row once the lane has caught up.
    bool has_all_rows(LaneId lane) {
        REQUIRE(drafts_->catch_up(lane).ok());
        std::vector<memory::Cell> cells(texts_[static_cast<std::size_t>(lane)].size() - 1);
        return drafts_->device().find(lane, 0, cells).ok();
    }

    int n_meanwhile = 0;

private:
    void compute(std::span<const engine::Slice> slices) {
        const auto meanwhile = [this] {
            ++n_meanwhile;
            if (reads_meanwhile_) drafts_->meanwhile();
        };
        REQUIRE(decoder_.decode(slices, meanwhile).ok());
        std::int32_t row = 0;
        for (const engine::Slice& slice : slices) {
            const auto n = static_cast<std::int32_t>(slice.tokens.size());
            const Tokens& text = texts_[static_cast<std::size_t>(slice.lane)];
            if (text.size() >= skips_from_ && text.size() < skips_to_) {
                drafts_->skip(slice.lane, text, slice.begin + n, n, row);
            } else {
                drafts_->follow(slice.lane, text, slice.begin + n, n, row);
            }
            row += n;
        }
    }

    Token best(std::size_t row) const {
        const Result<Token> token = llama::argmax(decoder_.logits(row));
        REQUIRE(token.ok());
        return token.value();
    }

    bool reads_meanwhile_;
    std::size_t skips_from_;
    std::size_t skips_to_;
    llama::Model model_;
    llama::LlamaDecoder decoder_;
    std::unique_ptr<llama::DflashDrafts> drafts_;
    std::vector<Tokens> texts_;
};

}  // namespace

TEST_CASE("features that are read while the target computes give the same drafts") {
    Following afterwards(false);
    Following meanwhile(true);
    CHECK(meanwhile.n_meanwhile == static_cast<int>(2 + kAnswer - 1));
    const std::vector<speculation::Draft> expected = afterwards.draft();
    const std::vector<speculation::Draft> found = meanwhile.draft();
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i].tokens == expected[i].tokens);
        for (std::size_t k = 0; k < found[i].confidence.size(); ++k) {
            CHECK(std::abs(found[i].confidence[k] - expected[i].confidence[k]) < 0.02F);
        }
    }
    for (const LaneId lane : {LaneId{0}, LaneId{1}}) CHECK(meanwhile.has_all_rows(lane));
}

TEST_CASE("tokens that were skipped leave no gap, and drafting goes on behind them") {
    for (const bool to_the_end : {false, true}) {
        Following skipping(false, kPrompt + 30, to_the_end ? kPrompt + 2 * kAnswer : kPrompt + 100);
        const std::vector<speculation::Draft> drafts = skipping.draft();
        REQUIRE(drafts.size() == 2);
        for (const speculation::Draft& draft : drafts) CHECK(draft.tokens.size() == kMost);
        for (const LaneId lane : {LaneId{0}, LaneId{1}}) CHECK(skipping.has_all_rows(lane));
    }
}

TEST_CASE("an answer's end that is left out leaves no gap") {
    for (const std::int32_t n : {0, 1, 10, 100000}) {
        Following following(false);
        following.leave_out(LaneId{0}, n);
        for (const LaneId lane : {LaneId{0}, LaneId{1}}) CHECK(following.has_all_rows(lane));
        CHECK(following.draft()[0].tokens.size() == kMost);
    }
}

TEST_SUITE_END();
