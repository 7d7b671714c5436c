// Whole answers on a machine made of arithmetic: whatever their length and whatever the drafts are worth, they take no
// longer than plain decoding by more than a little, prompts included; and drafts that are right shorten short answers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "speculation/controller/speculation_controller.h"
#include "tests/speculation/speculation_world.h"

using namespace luce;
using namespace luce::speculation;
using namespace luce::tests;

TEST_SUITE("speculation") {

namespace {

struct Machine {
    std::string name;
    double step_s = 0;       // plain
    double token_share = 0;  // of a plain step: a further token of a call
    double draft_share = 0;  // of a plain step: a draft
};

struct Texts {
    std::int32_t n_prompt = 0;
    std::int32_t n_answer = 0;
    double right = 0;  // chance of each drafted token, if those before it are right
};

// One lane, one drafter. Time in plain steps.
class Answers {
public:
    Answers(const Machine& machine, const Texts& texts, std::uint64_t seed)
        : machine_(machine), texts_(texts), seed_(seed), controller_(config()) {
        for (int i = 0; i < 3; ++i) controller_.observe_warmup_step({1, 1, 1, machine.step_s});
        controller_.observe_warmup_draft(0, 1, kBlock, draft_s());
        for (std::int32_t width = kBlock; width > 0; width /= 2) {
            controller_.observe_warmup_step({1, 1 + width, 1, call_s(width)});
        }
        for (int i = 0; i < 3; ++i) controller_.observe_warmup_step({1, 1, 1, machine.step_s});
    }

    // What speculation added to the time of an answer, in plain decoding's of the same answer, prompt included.
    double next() {
        const double prompt_s = kPromptShare * machine_.token_share * machine_.step_s * texts_.n_prompt;
        double spent_s = prompt_s;
        controller_.begin(kLane);
        if (reading_s > 0 && controller_.should_read(kLane, 0, texts_.n_prompt)) {
            ++n_read_;
            spent_s += reading_s * texts_.n_prompt;
            controller_.observe_reading(0, texts_.n_prompt, reading_s * texts_.n_prompt);
        }
        std::int32_t n_done = 1;
        bool follows_prompt = true;
        while (n_done < texts_.n_answer) {
            const std::int32_t n_most = std::min(kBlock, texts_.n_answer - n_done - 1);
            const std::vector<LaneState> lanes = {{kLane, texts_.n_prompt + n_done, n_most}};
            const std::vector<DraftRequest> asks = controller_.requests(lanes, {});
            Dice dice(seed_, n_answers_, static_cast<std::uint64_t>(n_done));
            std::vector<float> confidence;
            std::int32_t n_right = 0;
            if (!asks.empty()) {
                const std::int32_t n = asks.front().n_tokens;
                confidence.assign(static_cast<std::size_t>(n), static_cast<float>(0.2 + 0.6 * texts_.right));
                while (n_right < n && dice.uniform() < texts_.right) ++n_right;
                spent_s += draft_s();
                controller_.observe_draft(0, 1, n, draft_s() * noise(dice));
            }
            std::vector<Proposal> proposals;
            if (!asks.empty()) proposals.push_back({kLane, 0, confidence});
            const Choice choice = controller_.choose(lanes, proposals).front();
            const std::int32_t n_got = 1 + std::min(choice.width, n_right);
            const double seconds = call_s(choice.width);
            spent_s += seconds;
            controller_.observe_step({1, 1 + choice.width, texts_.n_prompt + n_done, seconds * noise(dice), 0,
                                      n_got - 1, std::exchange(follows_prompt, false)});
            if (!proposals.empty()) {
                const std::int32_t width = choice.width > 0 ? choice.width : 1;
                controller_.observe_verdict(proposals.front(), width, std::min(width, n_right));
            }
            n_done += n_got;
        }
        ++n_answers_;
        controller_.observe_answer(texts_.n_answer);
        const double plain_s = prompt_s + machine_.step_s * (texts_.n_answer - 1);
        return spent_s / plain_s;
    }

    double reading_s = 0;  // a token of a prompt, by the drafter
    int n_read() const { return n_read_; }

private:
    static constexpr LaneId kLane{0};
    static constexpr double kPromptShare = 0.3;  // a prompt's tokens are cheaper than a few of a step's

    static ControllerConfig config() {
        ControllerConfig config;
        config.n_most = kBlock;
        config.sources = {{"block", kBlock, false}};
        return config;
    }
    double call_s(std::int32_t width) const { return machine_.step_s * (1 + machine_.token_share * width); }
    double draft_s() const { return machine_.step_s * machine_.draft_share; }
    static double noise(Dice& dice) { return std::exp(0.05 * dice.normal()); }

    Machine machine_;
    Texts texts_;
    std::uint64_t seed_;
    std::uint64_t n_answers_ = 0;
    int n_read_ = 0;
    SpeculationController controller_;
};

const std::vector<Machine> kMachines = {{"cpu", 0.002, 0.17, 0.7}, {"gpu", 0.012, 0.05, 0.25}};

double mean_of(Answers& answers, int n) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += answers.next();
    return sum / n;
}

}  // namespace

TEST_CASE("whole answers are no slower than plain decoding's, short ones too, and gain where drafts are right") {
    for (const Machine& machine : kMachines) {
        for (const std::int32_t n_answer : {9, 24, 100, 300}) {
            for (const double right : {0.0, 0.5, 0.98}) {
                constexpr int kSeeds = 10;
                double cold = 0, next = 0, warm = 0;
                for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
                    Answers answers(machine, {60, n_answer, right}, seed);
                    cold += answers.next() / kSeeds;
                    next += mean_of(answers, 10) / kSeeds;
                    warm += mean_of(answers, 20) / kSeeds;
                }
                INFO(machine.name, ", answers of ", n_answer, ", right ", right, ": first ", cold, ", next ten ", next,
                     ", later ", warm);
                // The first answers pay for a few drafts by which it is found out what they are worth: what is granted
                // for that, and the shares of time that may be risked.
                CHECK(cold * n_answer <= 1.014 * n_answer + 4);
                CHECK(next <= 1 + 0.3 / n_answer + 0.01);
                CHECK(warm <= 1.01);
                if (right > 0.9) CHECK(warm <= 0.6);
            }
        }
    }
}

// Texts of 1,000 tokens whose reading takes ten plain steps.
TEST_CASE("a drafter reads texts only where answers are likely to earn it back") {
    const auto n_read_of_100 = [](double right, std::int32_t n_answer) {
        Answers answers({"gpu", 0.012, 0.05, 0.25}, {1000, n_answer, right}, 1);
        answers.reading_s = 0.012 / 100;
        for (int i = 0; i < 100; ++i) answers.next();
        const int n_before = answers.n_read();
        for (int i = 0; i < 100; ++i) answers.next();
        return answers.n_read() - n_before;
    };
    CHECK(n_read_of_100(0.98, 300) == 100);
    CHECK(n_read_of_100(0.98, 24) == 100);
    CHECK(n_read_of_100(0.98, 9) < 10);  // not even where each draft is right
    CHECK(n_read_of_100(0, 300) < 10);
    CHECK(n_read_of_100(0, 24) < 10);
}

}  // TEST_SUITE("speculation")
