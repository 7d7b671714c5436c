// RowSampler: a token sampler in two steps, so that the first, which is long and changes nothing that counts, may be
// done ahead and beside others'. Knows how a token is handed from one step to the next, and no way to choose it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/decoding/logit_choice.h"

namespace luce::llama {

class RowSampler : public engine::TokenSampler {
public:
    explicit RowSampler(const LlamaDecoder& decoder) : decoder_(decoder) {}

    Result<Token> sample(std::size_t row) final {
        const std::optional<Ahead> ahead = std::exchange(ahead_, std::nullopt);
        Result<Token> chosen = ahead && ahead->row == row ? ahead->token : choose(decoder_.logits(row));
        if (!chosen) return chosen;
        return accept(chosen.value());
    }

    // What sample(row) will return, but for the errors of accepting it. Any thread, one at a time. REQUIRES:
    // sample(row) comes before the row changes.
    void choose_ahead(std::span<const float> logits, std::size_t row) { ahead_ = Ahead{row, choose(logits)}; }

    std::vector<engine::TokenLogprob> logprobs(std::size_t row, Token chosen, std::int32_t n) const override {
        return top_logprobs(decoder_.logits(row), chosen, n);
    }

protected:
    // The same token each time until accept(). Throws nothing. Needs the row alone, and no other thread to stand still.
    virtual Result<Token> choose(std::span<const float> logits) = 0;

    // The token is the text's. Returns it.
    virtual Result<Token> accept(Token token) { return token; }

private:
    struct Ahead {
        std::size_t row;
        Result<Token> token;
    };

    const LlamaDecoder& decoder_;
    std::optional<Ahead> ahead_;
};

}  // namespace luce::llama
