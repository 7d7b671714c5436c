// Texts one after the other that copy much, little or nothing, drafted by n-grams alone where calls cost nearly as much
// as their tokens: what one text gains is not for another one to lose.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "speculation/controller/speculation_controller.h"
#include "tests/speculation/speculation_world.h"

using namespace luce;
using namespace luce::speculation;
using namespace luce::tests;

TEST_SUITE("speculation") {

namespace {

constexpr LaneId kLane{0};

class CopyingTexts {
public:
    CopyingTexts() : controller_(config()) {
        for (const std::int32_t width : {0, 0, 0, kBlock, 5, 1}) {
            controller_.observe_warmup_step({1, 1 + width, 1, call_s(width)});
        }
    }

    // What one took, against plain decoding. Every `interval` tokens there is a draft, of which n_right are right.
    double against_plain(std::int32_t n_tokens, std::int32_t interval, std::int32_t n_right) {
        controller_.begin(kLane);
        double seconds = 0;
        std::int32_t next_draft = 1;
        for (std::int32_t n_done = 0; n_done < n_tokens;) {
            const LaneState lane{kLane, 300 + n_done, std::min(kBlock, n_tokens - n_done - 1)};
            const bool has_draft = n_done >= next_draft;
            const std::vector<Proposal> proposals(has_draft ? 1 : 0, proposal_);
            const std::int32_t width = controller_.choose(std::span(&lane, 1), proposals).front().width;
            const std::int32_t n_got = std::min(width, n_right);
            seconds += call_s(width);
            n_done += 1 + n_got;
            controller_.observe_step({1, 1 + width, lane.n_text, call_s(width), 0, n_got});
            if (!has_draft) continue;
            controller_.observe_verdict(proposal_, std::max(width, 1), std::min(std::max(width, 1), n_right));
            next_draft = n_done + interval;
        }
        return seconds / (n_tokens * call_s(0));
    }

private:
    static double call_s(std::int32_t n_drafted) { return 0.04 * (1 + 0.6 * n_drafted); }
    static ControllerConfig config() {
        ControllerConfig config = config_of(1);
        config.sources.resize(1);
        return config;
    }

    std::vector<float> confidence_ = std::vector<float>(static_cast<std::size_t>(kBlock), 0.98F);
    Proposal proposal_{kLane, kNgram, confidence_};
    SpeculationController controller_;
};

}  // namespace

TEST_CASE("what one text has saved is not for the next to lose") {
    CopyingTexts texts;
    for (int i = 0; i < 3; ++i) texts.against_plain(200, 0, kBlock);
    CHECK(texts.against_plain(200, 0, 0) < 1.025);
}

TEST_CASE("what was right in other texts is not counted on in a short one that copies little") {
    for (const std::int32_t n_right : {0, 1, 2, 4}) {
        CAPTURE(n_right);
        CopyingTexts texts;
        for (int i = 0; i < 3; ++i) texts.against_plain(200, 0, kBlock);
        CHECK(texts.against_plain(50, 12, n_right) < 1.06);
        CHECK(texts.against_plain(200, 0, kBlock) < 0.7);
    }
}

}  // TEST_SUITE("speculation")
