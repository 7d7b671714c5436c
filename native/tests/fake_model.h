// A model made of arithmetic, for the engine's tests: its next token is a hash of the whole text before it, so any slip
// in positions, order or memory changes the answer. It checks what libllama would only suffer from.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/decoder.h"

namespace luce::tests {

inline constexpr std::int32_t kVocab = 1000;
inline constexpr Token kEndToken = 999;

inline std::uint64_t hash_text(const Tokens& text) {
    std::uint64_t h = 1469598103934665603ULL;
    for (const Token token : text) h = (h ^ static_cast<std::uint64_t>(token)) * 1099511628211ULL;
    return h;
}

// What the fake model says after `text`, never the end token.
inline Token next_token(const Tokens& text) { return static_cast<Token>(hash_text(text) % (kVocab - 1)); }

class FakeDecoder final : public engine::Decoder {
public:
    explicit FakeDecoder(engine::DecoderLimits limits) : limits_(limits) {}

    const engine::DecoderLimits& limits() const override { return limits_; }

    Result<void> decode(std::span<const engine::Slice> slices) override {
        ++n_calls;
        if (fail_next) {
            const Error error = *fail_next;
            fail_next.reset();
            return error;
        }
        std::int32_t n_new = 0;
        for (const engine::Slice& slice : slices) n_new += static_cast<std::int32_t>(slice.tokens.size());
        if (n_new > limits_.n_batch) return Error{ErrorCode::internal, "the batch is too large"};
        if (n_cells() + n_new > limits_.n_pool) return Error{ErrorCode::no_room, "no cells"};
        texts_of_rows.clear();
        for (const engine::Slice& slice : slices) {
            Tokens& text = memory[slice.lane];
            if (static_cast<std::size_t>(slice.begin) != text.size()) {
                return Error{ErrorCode::internal, "a slice does not follow what the lane holds"};
            }
            text.insert(text.end(), slice.tokens.begin(), slice.tokens.end());
            texts_of_rows.push_back(slice.wants_logits ? std::optional(text) : std::nullopt);
        }
        last_call.assign(slices.begin(), slices.end());
        max_cells = std::max(max_cells, n_cells());
        return {};
    }

    void forget(LaneId lane) override { memory.erase(lane); }

    Result<engine::LaneState> save(LaneId lane) override {
        if (cannot_save) return Error{ErrorCode::out_of_memory, "no memory to save into"};
        const Tokens& text = memory[lane];
        engine::LaneState state(text.size() * sizeof(Token));
        if (!text.empty()) std::memcpy(state.data(), text.data(), state.size());
        return state;
    }

    Result<void> load(LaneId lane, const engine::LaneState& state) override {
        if (cannot_load) return Error{ErrorCode::internal, "refused"};
        Tokens text(state.size() / sizeof(Token));
        if (!state.empty()) std::memcpy(text.data(), state.data(), state.size());
        memory[lane] = std::move(text);
        return {};
    }

    bool is_end_of_generation(Token token) const override { return token == kEndToken; }

    std::int32_t n_cells() const {
        std::size_t n = 0;
        for (const auto& [lane, text] : memory) n += text.size();
        return static_cast<std::int32_t>(n);
    }

    std::map<LaneId, Tokens> memory;
    std::vector<std::optional<Tokens>> texts_of_rows;
    std::vector<engine::Slice> last_call;  // the spans in it are not to be read
    std::optional<Error> fail_next;
    bool cannot_save = false;
    bool cannot_load = false;
    int n_calls = 0;
    std::int32_t max_cells = 0;

private:
    engine::DecoderLimits limits_;
};

class FakeSampler final : public engine::TokenSampler {
public:
    FakeSampler(const FakeDecoder& decoder, std::optional<std::int32_t> end_at) : decoder_(decoder), end_at_(end_at) {}

    Result<Token> sample(std::size_t row) override {
        const std::optional<Tokens>& text = decoder_.texts_of_rows.at(row);
        if (!text) return Error{ErrorCode::internal, "this row has no logits"};
        if (end_at_ && static_cast<std::int32_t>(text->size()) >= *end_at_) return kEndToken;
        return next_token(*text);
    }

    std::vector<engine::TokenLogprob> logprobs(std::size_t, Token chosen, std::int32_t n) const override {
        return std::vector<engine::TokenLogprob>(static_cast<std::size_t>(n) + 1, {chosen, -1.0F});
    }

private:
    const FakeDecoder& decoder_;
    std::optional<std::int32_t> end_at_;
};

class FakeSamplers final : public engine::SamplerFactory {
public:
    explicit FakeSamplers(const FakeDecoder& decoder) : decoder_(decoder) {}

    Result<std::unique_ptr<engine::TokenSampler>> create(const engine::Request& request) override {
        if (request.constraint.grammar == "bad") return Error{ErrorCode::bad_grammar, "bad"};
        return std::unique_ptr<engine::TokenSampler>(std::make_unique<FakeSampler>(decoder_, end_at));
    }

    std::optional<std::int32_t> end_at;  // text length after which the end token comes

private:
    const FakeDecoder& decoder_;
};

}  // namespace luce::tests
