// What samplers are compared with: llama.cpp's common_sampler_sample, which makes a table of the whole vocabulary for
// each token; and random requests and rows to compare them on.
#pragma once

#include <cmath>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <limits>
#include <optional>
#include <random>

#include "engine/request.h"
#include "sampling.h"
#include "tests/llama/llama_memory.h"

namespace luce::memory_tests {

// As the protocol says it: the i-th token's draw has a seed of its own. SplitMix64.
inline std::uint32_t seed_of_draw(std::uint64_t seed, std::uint64_t index) {
    std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (index + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 16);
}

// A table of the whole vocabulary for each token, which is what common_sampler_sample makes.
class Reference {
public:
    Reference(Setup& setup, const Request& request) : setup_(setup), seed_(request.sampling.seed) {
        const SamplingParams& from = request.sampling;
        draws_ = from.temperature > 0;
        common_params_sampling params;
        params.temp = from.temperature;
        params.top_k = from.top_k;
        params.top_p = from.top_p;
        params.min_p = from.min_p;
        params.penalty_repeat = from.repeat_penalty;
        params.penalty_present = from.presence_penalty;
        params.penalty_freq = from.frequency_penalty;
        for (const auto& [token, bias] : from.logit_bias) params.logit_bias.push_back({token, bias});
        params.samplers = {COMMON_SAMPLER_TYPE_PENALTIES, COMMON_SAMPLER_TYPE_TOP_K, COMMON_SAMPLER_TYPE_TOP_P,
                           COMMON_SAMPLER_TYPE_MIN_P, COMMON_SAMPLER_TYPE_TEMPERATURE};
        constrain(request.constraint, params);
        sampler_.reset(common_sampler_init(setup.model.model(), params));
        for (const Token token : request.prompt) common_sampler_accept(sampler_.get(), token, false);
    }

    // None: no token is left, or the grammar throws.
    std::optional<Token> sample() {
        if (draws_) {
            llama_sampler* chain = common_sampler_get(sampler_.get());
            llama_sampler_free(llama_sampler_chain_remove(chain, llama_sampler_chain_n(chain) - 1));
            llama_sampler_chain_add(chain, llama_sampler_init_dist(seed_of_draw(seed_, n_drawn_++)));
        }
        try {
            const Token token = common_sampler_sample(sampler_.get(), setup_.model.context(), 0);
            const llama_token_data_array& left = *common_sampler_get_candidates(sampler_.get(), false);
            if (!std::isfinite(left.data[left.selected].logit)) return std::nullopt;
            common_sampler_accept(sampler_.get(), token, true);
            return token;
        } catch (const std::exception&) {
            return std::nullopt;
        }
    }

private:
    static void constrain(const ConstraintParams& from, common_params_sampling& to) {
        const bool is_users = from.generation_prompt.empty();
        to.grammar = {is_users ? COMMON_GRAMMAR_TYPE_USER : COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT, from.grammar};
        to.grammar_lazy = from.grammar_is_lazy;
        for (const Trigger& trigger : from.triggers) {
            common_grammar_trigger& added = to.grammar_triggers.emplace_back();
            switch (trigger.kind) {
                case Trigger::Kind::word: added.type = COMMON_GRAMMAR_TRIGGER_TYPE_WORD; break;
                case Trigger::Kind::pattern: added.type = COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN; break;
                case Trigger::Kind::pattern_full: added.type = COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL; break;
                case Trigger::Kind::token: added.type = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN; break;
            }
            added.value = trigger.text;
            added.token = trigger.token;
        }
        to.generation_prompt = from.generation_prompt;
        to.reasoning_budget_start = from.think_start;
        to.reasoning_budget_end = from.think_end;
        if (!from.think_budget) return;
        to.reasoning_budget_tokens = *from.think_budget;
        to.reasoning_budget_forced = from.think_message;
        const Tokens& end = from.think_end.front();
        to.reasoning_budget_forced.insert(to.reasoning_budget_forced.end(), end.begin(), end.end());
    }

    Setup& setup_;
    std::uint64_t seed_;
    bool draws_ = false;
    std::uint64_t n_drawn_ = 0;
    common_sampler_ptr sampler_;
};

inline Request random_request(std::mt19937& random, std::int32_t n_vocab) {
    const auto one_of = [&](std::initializer_list<float> values) { return values.begin()[random() % values.size()]; };
    Request request;
    request.prompt = some_tokens(static_cast<int>(1 + random() % 90), static_cast<int>(random() % 100));
    SamplingParams& sampling = request.sampling;
    sampling.seed = random();
    sampling.temperature = one_of({0, 0.7F, 1, 3});
    sampling.top_k = static_cast<std::int32_t>(one_of({0, 1, 20, 40, 40, 200, 9000}));
    sampling.top_p = one_of({1, 0.95F});
    sampling.min_p = one_of({0, 0, 0.05F});
    sampling.repeat_penalty = one_of({1, 1, 1.1F, 2});
    sampling.presence_penalty = one_of({0, 0, 0.5F});
    sampling.frequency_penalty = one_of({0, 0, 0.3F});
    if (random() % 3 == 0) {
        const auto first = static_cast<Token>(random() % 8);
        for (Token i = 0; i < 10; ++i) {
            const float bias = i == 3 ? -std::numeric_limits<float>::infinity() : one_of({-3, 3, 8});
            sampling.logit_bias.emplace_back((first + i * 811) % n_vocab, bias);
        }
    }
    return request;
}

inline Logits random_row(std::mt19937& random, std::int32_t n_vocab) {
    std::normal_distribution<float> normal(0, 1 + static_cast<float>(random() % 5));
    Logits logits(static_cast<std::size_t>(n_vocab));
    for (float& logit : logits) logit = normal(random);
    return logits;
}

}  // namespace luce::memory_tests
