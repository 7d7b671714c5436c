// The fake model's sampler: greedy, and so exact that a wrong logit anywhere shows as a wrong token. What it chose
// ahead it stands by, so that a choice which is left over shows as one, too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/engine/fake_model.h"

namespace luce::tests {

class FakeSampler final : public engine::TokenSampler {
public:
    FakeSampler(const FakeModel& model, const std::optional<std::int32_t>& end_at, std::int32_t n_prompt)
        : model_(model), end_at_(end_at), n_text_(n_prompt) {}

    Result<Token> sample(std::size_t row) override {
        const std::optional<Ahead> ahead = std::exchange(ahead_, std::nullopt);
        if (ahead && ahead->row != row) return Error{ErrorCode::internal, "another row was announced"};
        const Result<Token> chosen = ahead ? ahead->token : choose(row);
        ++n_text_;
        return chosen;
    }

    void choose_ahead(std::size_t row) { ahead_ = Ahead{row, choose(row)}; }

    // So exact that a wrong row shows: the first of its logits.
    std::vector<engine::TokenLogprob> logprobs(std::size_t row, Token chosen, std::int32_t n) const override {
        const std::span<const float> logits = model_.logits(row);
        if (logits.empty()) return {};
        return std::vector<engine::TokenLogprob>(static_cast<std::size_t>(n) + 1, {chosen, logits[0]});
    }

private:
    struct Ahead {
        std::size_t row;
        Result<Token> token;
    };

    Result<Token> choose(std::size_t row) const {
        const std::span<const float> logits = model_.logits(row);
        if (logits.empty()) return Error{ErrorCode::internal, "this row has no logits"};
        std::uint64_t hash = 0;
        for (std::size_t i = 0; i < 4; ++i) hash |= static_cast<std::uint64_t>(logits[i]) << (16 * i);
        if (end_at_ && n_text_ >= *end_at_) return kEndToken;
        return next_of(hash);
    }

    const FakeModel& model_;
    std::optional<std::int32_t> end_at_;
    std::int32_t n_text_;
    std::optional<Ahead> ahead_;
};

class FakeSamplers final : public engine::SamplerFactory {
public:
    explicit FakeSamplers(const FakeModel& model) : model_(model) {}

    Result<std::unique_ptr<engine::TokenSampler>> create(const engine::Request& request) override {
        if (request.constraint.grammar == "bad") return Error{ErrorCode::bad_grammar, "bad"};
        return std::unique_ptr<engine::TokenSampler>(
            std::make_unique<FakeSampler>(model_, end_at, static_cast<std::int32_t>(request.prompt.size())));
    }

    void choose_ahead(std::span<const engine::PendingSample> pending) override {
        n_ahead += pending.size();
        for (const engine::PendingSample& sample : pending) {
            static_cast<FakeSampler&>(*sample.sampler).choose_ahead(sample.row);
        }
    }

    std::size_t n_ahead = 0;             // tokens that were chosen before they were asked for
    std::optional<std::int32_t> end_at;  // text length after which the end token comes

private:
    const FakeModel& model_;
};

}  // namespace luce::tests
