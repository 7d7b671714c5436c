// What samplers are compared with: llama.cpp's common_sampler_sample, which makes a table of the whole vocabulary for
// each token; and random requests and rows to compare them on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <limits>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "records/sampling.h"
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
    Reference(Setup& setup, const Request& request) : setup_(setup), seed_(*request.sampling.seed) {
        const SamplingArgs& from = request.sampling;
        draws_ = !records::is_greedy(from);
        xtc_probability_ = from.xtc_probability;
        xtc_threshold_ = from.xtc_threshold;
        common_params_sampling params;
        params.temp = from.temperature;
        params.top_k = from.top_k;
        params.top_p = from.top_p;
        params.min_p = from.min_p;
        params.penalty_repeat = from.repeat_penalty;
        params.penalty_present = from.presence_penalty;
        params.penalty_freq = from.frequency_penalty;
        for (const auto& [token, bias] : from.logit_bias) params.logit_bias.push_back({token, bias});
        params.penalty_last_n = from.repeat_last_n;
        params.dry_multiplier = from.dry_multiplier;
        params.dry_base = from.dry_base;
        params.dry_allowed_length = from.dry_allowed_length;
        params.dry_penalty_last_n = from.dry_last_n;
        params.dry_sequence_breakers = from.dry_breakers;
        params.typ_p = from.typical_p;
        params.top_n_sigma = from.top_n_sigma;
        params.xtc_probability = from.xtc_probability;
        params.xtc_threshold = from.xtc_threshold;
        params.dynatemp_range = from.dynatemp_range;
        params.dynatemp_exponent = from.dynatemp_exponent;
        params.samplers.clear();
        for (const SamplerKind kind : from.order) {
            const common_sampler_type type = common_sampler_types_from_names({std::string(name_of(kind))}).at(0);
            // At a temperature of zero what cuts is left out: it would leave the largest logit in, or draw.
            if (draws_ || type == COMMON_SAMPLER_TYPE_PENALTIES || type == COMMON_SAMPLER_TYPE_DRY) {
                params.samplers.push_back(type);
            }
        }
        if (!draws_) params.samplers.push_back(COMMON_SAMPLER_TYPE_TEMPERATURE);
        constrain(request.constraint, params);
        sampler_.reset(common_sampler_init(setup.model.model(), params));
        for (const Token token : request.prompt) common_sampler_accept(sampler_.get(), token, false);
    }

    // None: no token is left, or the grammar throws.
    std::optional<Token> sample() {
        if (draws_) reseed();
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
    // The draw, and what draws before it, get this token's own seeds.
    void reseed() {
        llama_sampler* chain = common_sampler_get(sampler_.get());
        std::vector<llama_sampler*> links;
        while (llama_sampler_chain_n(chain) > 0) links.push_back(llama_sampler_chain_remove(chain, 0));
        for (llama_sampler*& link : links) {
            llama_sampler* fresh = nullptr;
            if (std::string_view(llama_sampler_name(link)) == "xtc") {
                fresh = llama_sampler_init_xtc(xtc_probability_, xtc_threshold_, 0, seed_of_draw(~seed_, n_drawn_));
            } else if (link == links.back()) {
                fresh = llama_sampler_init_dist(seed_of_draw(seed_, n_drawn_));
            }
            if (fresh != nullptr) llama_sampler_free(link);
            llama_sampler_chain_add(chain, fresh != nullptr ? fresh : link);
        }
        ++n_drawn_;
    }

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
    float xtc_probability_ = 0;
    float xtc_threshold_ = 0;
    std::uint64_t n_drawn_ = 0;
    common_sampler_ptr sampler_;
};

inline Request random_request(std::mt19937& random, std::int32_t n_vocab) {
    const auto one_of = [&](std::initializer_list<float> values) { return values.begin()[random() % values.size()]; };
    Request request;
    request.prompt = some_tokens(static_cast<int>(1 + random() % 90), static_cast<int>(random() % 100));
    SamplingArgs& sampling = request.sampling;
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

// Of the links that few requests ask for, some, in llama.cpp's order or another.
inline void add_rare_links(std::mt19937& random, SamplingArgs& sampling) {
    const auto one_of = [&](std::initializer_list<float> values) { return values.begin()[random() % values.size()]; };
    sampling.repeat_last_n = static_cast<std::int32_t>(one_of({0, 8, 64, 64, 2000}));
    sampling.dry_multiplier = one_of({0, 0.8F, 4});
    sampling.dry_allowed_length = static_cast<std::int32_t>(one_of({1, 2}));
    sampling.dry_last_n = static_cast<std::int32_t>(one_of({0, 32, 64, 500}));
    if (random() % 2 == 0) sampling.dry_breakers = {"e", " the"};
    sampling.typical_p = one_of({1, 1, 0.6F});
    sampling.top_n_sigma = one_of({0, 0, 1.5F});
    sampling.xtc_probability = one_of({0, 0.5F, 1});
    sampling.xtc_threshold = one_of({0.01F, 0.1F});
    sampling.dynatemp_range = one_of({0, 0, 0.4F});
    sampling.dynatemp_exponent = one_of({1, 2});
    if (random() % 3 == 0) {
        std::shuffle(sampling.order.begin(), sampling.order.end(), random);
        if (random() % 2 == 0) sampling.order.resize(1 + random() % sampling.order.size());
    }
}

inline Logits random_row(std::mt19937& random, std::int32_t n_vocab) {
    std::normal_distribution<float> normal(0, 1 + static_cast<float>(random() % 5));
    Logits logits(static_cast<std::size_t>(n_vocab));
    for (float& logit : logits) logit = normal(random);
    return logits;
}

}  // namespace luce::memory_tests
