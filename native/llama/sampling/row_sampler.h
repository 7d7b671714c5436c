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
        Result<Token> chosen = ahead && ahead->row == row ? ahead->token : choose(decoder_.logits(row), row);
        if (!chosen) return chosen;
        return accept(chosen.value());
    }

    // Whether choose_ahead() needs the row's logits alone, and no other thread to stand still.
    virtual bool can_choose_ahead() const = 0;

    // What sample(row) will return, but for the errors of accepting it. REQUIRES: can_choose_ahead(); sample(row) comes
    // before the row changes; one thread at a time.
    void choose_ahead(std::span<const float> logits, std::size_t row) { ahead_ = Ahead{row, choose(logits, row)}; }

    std::vector<engine::TokenLogprob> logprobs(std::size_t row, Token chosen, std::int32_t n) const override {
        return top_logprobs(decoder_.logits(row), chosen, n);
    }

protected:
    // The same token each time until accept(). Throws nothing.
    virtual Result<Token> choose(std::span<const float> logits, std::size_t row) = 0;

    // The token is the text's. Returns it.
    virtual Result<Token> accept(Token token) { return token; }

    const LlamaDecoder& decoder() const { return decoder_; }

private:
    struct Ahead {
        std::size_t row;
        Result<Token> token;
    };

    const LlamaDecoder& decoder_;
    std::optional<Ahead> ahead_;
};

}  // namespace luce::llama
