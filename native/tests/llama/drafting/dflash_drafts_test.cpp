// Tests of DFlash drafts: neither when the features of a text are read nor whether its memory was put out and back
// makes a difference to what is drafted.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "llama/decoding/llama_decoder.h"
#include "llama/decoding/logit_choice.h"
#include "llama/drafting/dflash_drafts.h"
#include "llama/kv_cache/combined_kv_device.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

constexpr std::int32_t kMost = 7;
constexpr std::size_t kPrompt = 75;
constexpr std::size_t kAnswer = 130;

// How far confidences may move where cells lie in another order: where it is the same one they do not move at all, and
// the lost rows of a text move them by 0.6.
constexpr float kRounding = 0.05F;
// Bytes at the end of a windowed drafter's state: values of the last layer's window, which is larger.
constexpr std::ptrdiff_t kSomeRows = 4096;

llama::Model load_target(const std::string& name) {
    static const llama::Backend backend;
    llama::ModelOptions options;
    options.path = test_model(name);
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

// A text and all that was known of it, outside the device.
struct Kept {
    Tokens text;
    Bytes rows;
    Bytes state;
};

// Two lanes of different lengths, decoded plainly side by side after their prompts.
class Following {
public:
    // `skips_from`, `skips_to`: of the texts' lengths, between which tokens are skipped.
    explicit Following(bool reads_meanwhile, std::size_t skips_from = 0, std::size_t skips_to = 0,
                       const std::string& target = "qwen35", const std::string& drafter = {})
        : reads_meanwhile_(reads_meanwhile),
          skips_from_(skips_from),
          skips_to_(skips_to),
          model_(load_target(target)),
          decoder_(model_, 2),
          target_device_(model_, 2) {
        llama::DraftModelOptions options;
        options.path = test_model("drafts/dflash-" + (drafter.empty() ? target : drafter));
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

    std::vector<speculation::Draft> draft(std::int32_t n_most = kMost) {
        std::vector<speculation::DraftAsk> asks;
        for (std::size_t lane = 0; lane < 2; ++lane) asks.push_back({static_cast<LaneId>(lane), texts_[lane], n_most});
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

    // Of tokens that are given, so that no rounding can make them others.
    void go_on(std::int32_t n) {
        for (const Token token : some_tokens(n, 91)) {
            std::vector<engine::Slice> slices;
            for (std::size_t lane = 0; lane < 2; ++lane) {
                const auto last = static_cast<Position>(texts_[lane].size()) - 1;
                slices.push_back({static_cast<LaneId>(lane), last, std::span(texts_[lane]).last(1), 1});
            }
            compute(slices);
            for (Tokens& text : texts_) text.push_back(token);
        }
    }

    Kept keep(LaneId lane) {
        llama::CombinedKvDevice joint(target_device_, *drafts_);
        Kept kept{texts_[static_cast<std::size_t>(lane)], {}, {}};
        Cells cells(kept.text.size() - 1);
        REQUIRE(joint.find(lane, 0, cells));
        kept.rows.resize(cells.size() * joint.traits().row_bytes);
        REQUIRE(joint.read(cells, kept.rows, nullptr));
        REQUIRE(joint.save_state(lane, kept.state, nullptr));
        joint.settle();
        return kept;
    }

    // In place of all that the lanes hold.
    void put_back(const Kept& first, const Kept& second) {
        llama::CombinedKvDevice joint(target_device_, *drafts_);
        for (const LaneId lane : {kFirst, kSecond}) {
            drafts_->forget(lane);
            joint.forget(lane);
        }
        for (const LaneId lane : {kFirst, kSecond}) {
            const Kept& kept = lane == kFirst ? first : second;
            Cells cells(kept.text.size() - 1);
            const auto n_rows = static_cast<std::int32_t>(cells.size());
            REQUIRE(joint.write(lane, 0, std::span(kept.text).first(cells.size()), kept.rows, n_rows, cells));
            REQUIRE(joint.load_state(lane, kept.state));
            drafts_->begin(lane, kept.text, n_rows);
            texts_[static_cast<std::size_t>(lane)] = kept.text;
        }
    }

    // A page of each lane out and in again, as where a text outgrows its pool: in the cells where the other one was.
    void swap_pages() {
        llama::CombinedKvDevice joint(target_device_, *drafts_);
        std::vector<Bytes> pages;
        Cells cells(kPageSize);
        for (const LaneId lane : {kFirst, kSecond}) {
            REQUIRE(joint.find(lane, kPageSize, cells));
            pages.emplace_back(cells.size() * joint.traits().row_bytes);
            REQUIRE(joint.read(cells, pages.back(), nullptr));
            joint.settle();
            joint.hide(lane, cells);
        }
        for (const LaneId lane : {kSecond, kFirst}) {  // they get the lowest free cells
            const auto i = static_cast<std::size_t>(lane);
            const std::span<const Token> tokens = std::span(texts_[i]).subspan(kPageSize, kPageSize);
            REQUIRE(joint.place(kPageSize, tokens, pages[i], nullptr, cells));
            joint.show(lane, cells);
            joint.release(cells);
        }
    }

    // After which the drafter's rows begin.
    std::ptrdiff_t n_target_bytes(const Kept& kept) const {
        return static_cast<std::ptrdiff_t>((kept.text.size() - 1) * target_device_.traits().row_bytes);
    }

    bool has_window() { return drafts_->device().traits().has_state(); }

    int n_meanwhile = 0;

private:
    void compute(std::span<const engine::Slice> slices) {
        const auto overlapped = [this] {
            ++n_meanwhile;
            if (reads_meanwhile_) drafts_->overlapped();
        };
        REQUIRE(decoder_.decode(slices, overlapped).ok());
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
    llama::LlamaKvDevice target_device_;
    std::unique_ptr<llama::DflashDrafts> drafts_;
    std::vector<Tokens> texts_;
};

// How far the confidences of two drafts lie apart, whose tokens are the same but for one that is nearly a tie; else 1.
float apart(const speculation::Draft& found, const speculation::Draft& expected) {
    if (found.tokens.size() != expected.tokens.size()) return 1.0F;
    std::size_t n_others = 0;
    float most = 0.0F;
    for (std::size_t i = 0; i < found.tokens.size(); ++i) {
        n_others += found.tokens[i] == expected.tokens[i] ? 0 : 1;
        most = std::max(most, std::abs(found.confidence[i] - expected.confidence[i]));
    }
    return n_others > 1 ? 1.0F : most;
}

}  // namespace

TEST_CASE("features that are read while the target computes give the same drafts") {
    Following afterwards(false);
    Following overlapped(true);
    CHECK(overlapped.n_meanwhile == static_cast<int>(2 + kAnswer - 1));
    const std::vector<speculation::Draft> expected = afterwards.draft();
    const std::vector<speculation::Draft> found = overlapped.draft();
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i].tokens == expected[i].tokens);
        for (std::size_t k = 0; k < found[i].confidence.size(); ++k) {
            CHECK(std::abs(found[i].confidence[k] - expected[i].confidence[k]) < 0.02F);
        }
    }
    for (const LaneId lane : {LaneId{0}, LaneId{1}}) CHECK(overlapped.has_all_rows(lane));
}

TEST_CASE("a block's tokens see each other, if the file does not say that they see only those before them") {
    for (const bool is_causal : {false, true}) {
        CAPTURE(is_causal);
        Following following(false, 0, 0, "qwen3", is_causal ? "causal" : "qwen3");
        const auto alone = following.draft(1);
        const auto before_others = following.draft();
        float moved = 0.0F;
        for (std::size_t lane = 0; lane < 2; ++lane) {
            REQUIRE(before_others[lane].tokens.size() == kMost);
            moved = std::max(moved, std::abs(alone[lane].confidence[0] - before_others[lane].confidence[0]));
        }
        CAPTURE(moved);
        CHECK((is_causal ? moved < 1e-4F : moved > 5e-3F));
    }
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

// What was kept is of a text that has gone on since, beyond what a window holds, and comes back into the other lane: so
// nothing that is still lying there can be taken for it.
TEST_CASE("drafts of a text that was put out and back are those of the undisturbed one, with a window as well") {
    for (const std::string& target : {std::string("qwen35"), std::string("laguna")}) {
        CAPTURE(target);
        Following undisturbed(false, 0, 0, target);
        Following disturbed(false, 0, 0, target);
        REQUIRE(disturbed.has_window() == (target == "laguna"));
        const std::vector<Kept> kept = {disturbed.keep(kFirst), disturbed.keep(kSecond)};
        disturbed.go_on(100);
        disturbed.put_back(kept[1], kept[0]);
        const auto check = [&] {
            const std::vector<speculation::Draft> expected = undisturbed.draft();
            const std::vector<speculation::Draft> found = disturbed.draft();
            for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
                CHECK(expected[i].tokens.size() == kMost);
                CHECK(apart(found[1 - i], expected[i]) < kRounding);
            }
        };
        for (const std::int32_t n : {0, 1, 40}) {
            CAPTURE(n);
            undisturbed.go_on(n);
            disturbed.go_on(n);
            check();
        }
        disturbed.swap_pages();
        check();

        // Control: zeros for the drafter's rows show, and so do zeros for some in its window.
        Kept without_rows = kept[0];
        std::fill(without_rows.rows.begin() + disturbed.n_target_bytes(without_rows), without_rows.rows.end(), 0);
        Kept without_window = kept[0];
        std::fill(without_window.state.end() - kSomeRows, without_window.state.end(), 0);
        for (const Kept* less : {&without_rows, &without_window}) {
            if (less == &without_window && !disturbed.has_window()) continue;
            disturbed.put_back(kept[0], *less);
            const std::vector<speculation::Draft> found = disturbed.draft();
            CHECK(apart(found[1], found[0]) > kRounding);
        }
    }
}

}  // TEST_SUITE("llama")
