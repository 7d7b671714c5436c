#include "llama/sampling/llama_sampler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <time.h>

#include "common.h"
#include "llama/decoding/logit_choice.h"
#include "llama/grammar/constraint_checks.h"
#include "llama/grammar/own_stack.h"
#include "sampling.h"

namespace luce::llama {
namespace {

using engine::ConstraintParams;
using engine::Request;
using engine::SamplingParams;
using engine::TokenLogprob;
using engine::Trigger;

// Greedy decoding with nothing in the way: the largest logit, the first of equal ones, without building the candidate
// table that `common` needs (it costs more than a decode step of a small model on a vocabulary of 250,000).
class GreedySampler final : public engine::TokenSampler {
public:
    explicit GreedySampler(const LlamaDecoder& decoder) : decoder_(decoder) {}

    Result<Token> sample(std::size_t row) override { return argmax(decoder_.logits(row)); }

    std::vector<TokenLogprob> logprobs(std::size_t row, Token chosen, std::int32_t n) const override {
        return top_logprobs(decoder_.logits(row), chosen, n);
    }

private:
    const LlamaDecoder& decoder_;
};

// SplitMix64 (Steele, Lea, Flood 2014): neighbouring inputs give unrelated outputs.
std::uint32_t draw_seed(std::uint64_t seed, std::uint64_t index) {
    std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (index + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    const auto mixed = static_cast<std::uint32_t>((x ^ (x >> 31)) >> 16);
    return mixed == LLAMA_DEFAULT_SEED ? 0 : mixed;  // llama.cpp takes that value for "choose one yourself"
}

double thread_cpu_s() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// All requests wait while one is sampled. A grammar's ways to go on, or a trigger's ways to match, add up token by
// token, so the first call that takes this long is not yet one that never ends. CPU time: a busy host is no fault.
constexpr double kMaxSampleCpu_s = 2.0;
constexpr double kMaxResumeCpu_s = 10.0;

// std::regex recurses once a character of the text that a lazy grammar has waited through, about 200 bytes a character;
// a main thread has 8 MiB. Longer texts get a stack of their own (a thread start a token: far less than the match).
constexpr std::size_t kMaxModerateText_bytes = std::size_t{8} << 10;
constexpr std::size_t kMaxText_bytes = std::size_t{512} << 10;
constexpr std::size_t kBaseStack_bytes = std::size_t{16} << 20;
constexpr std::size_t kStackPerByte_bytes = 1024;  // sanitizers multiply it

bool has_trigger_patterns(const ConstraintParams& constraint) {
    return constraint.grammar_is_lazy &&
           std::any_of(constraint.triggers.begin(), constraint.triggers.end(), [](const Trigger& trigger) {
               return trigger.kind == Trigger::Kind::pattern || trigger.kind == Trigger::Kind::pattern_full;
           });
}

class CommonSampler final : public engine::TokenSampler {
public:
    CommonSampler(common_sampler_ptr sampler, const Model& model, const LlamaDecoder& decoder, const Request& request)
        : sampler_(std::move(sampler)),
          model_(model),
          decoder_(decoder),
          seed_(request.sampling.seed),
          draws_(!request.sampling.is_greedy()),
          matches_patterns_(has_trigger_patterns(request.constraint)) {}

    // Bring the state to where it is after the prompt. Throws what llama.cpp's grammar throws.
    Result<void> accept_prompt(const Request& request, std::int32_t n_remembered) {
        const auto n_prompt = static_cast<std::int32_t>(request.prompt.size());
        const std::int32_t n_read = n_prompt - request.n_generated_before;
        cpu_s_ = 0;
        for (std::int32_t i = std::max(0, n_read - n_remembered); i < n_prompt; ++i) {
            const Token token = request.prompt[static_cast<std::size_t>(i)];
            if (Result<void> accepted = accept(token, i >= n_read); !accepted) return accepted;
            if (cpu_s_ > kMaxResumeCpu_s) {
                return Error{ErrorCode::bad_grammar,
                             "the grammar or its triggers take too long for what was generated already"};
            }
        }
        n_drawn_ = static_cast<std::uint64_t>(request.n_generated_before);
        return {};
    }

    Result<Token> sample(std::size_t row) override {
        if (const Result<Token> checked = argmax(decoder_.logits(row)); !checked) return checked;
        try {
            cpu_s_ = -thread_cpu_s();
            if (draws_) reseed();
            const Token token = common_sampler_sample(sampler_.get(), model_.context(), decoder_.batch_index(row));
            cpu_s_ += thread_cpu_s();
            if (Result<void> picked = check_picked(); !picked) return picked.error();
            if (Result<void> accepted = accept(token, true); !accepted) return accepted.error();
            ++n_drawn_;
            if (cpu_s_ <= kMaxSampleCpu_s) return token;
            return Error{ErrorCode::bad_grammar, "the grammar or a trigger is too ambiguous: one token took " +
                                                     std::to_string(cpu_s_) + " s to choose"};
        } catch (...) {
            return to_grammar_error();
        }
    }

    std::vector<TokenLogprob> logprobs(std::size_t row, Token chosen, std::int32_t n) const override {
        return top_logprobs(decoder_.logits(row), chosen, n);
    }

private:
    // The draw is the chain's last link: put one with this token's own seed in its place.
    void reseed() {
        llama_sampler* chain = common_sampler_get(sampler_.get());
        llama_sampler_free(llama_sampler_chain_remove(chain, llama_sampler_chain_n(chain) - 1));
        llama_sampler_chain_add(chain, llama_sampler_init_dist(draw_seed(seed_, n_drawn_)));
    }

    Result<void> check_picked() const {
        const llama_token_data_array* candidates = common_sampler_get_candidates(sampler_.get(), false);
        const float logit = candidates->selected < 0 ? -INFINITY : candidates->data[candidates->selected].logit;
        if (std::isfinite(logit)) return {};
        if (logit == -INFINITY) {
            return Error{ErrorCode::bad_grammar, "no token is left that the grammar and the biases allow"};
        }
        return Error{ErrorCode::bad_args, "the penalties and biases leave no finite logits"};
    }

    // Adds the time that it takes to cpu_s_.
    Result<void> accept(Token token, bool is_generated) {
        const auto body = [&] {
            cpu_s_ -= thread_cpu_s();
            common_sampler_accept(sampler_.get(), token, is_generated);
            cpu_s_ += thread_cpu_s();
        };
        if (!matches_patterns_ || !is_generated) {
            body();
            return {};
        }
        // Its whole answer bounds what a grammar waits through; only common_sampler knows when it stopped waiting.
        n_text_bytes_ += common_token_to_piece(model_.vocab(), token, true).size();
        if (n_text_bytes_ > kMaxText_bytes) {
            return Error{ErrorCode::bad_grammar,
                         "an answer whose grammar waits for a trigger pattern cannot be longer than 512 KiB"};
        }
        if (n_text_bytes_ <= kMaxModerateText_bytes)
            body();
        else
            stack_.run(kBaseStack_bytes + n_text_bytes_ * kStackPerByte_bytes, body);
        return {};
    }

    common_sampler_ptr sampler_;
    const Model& model_;
    const LlamaDecoder& decoder_;
    std::uint64_t seed_;
    bool draws_;
    bool matches_patterns_;  // the grammar is lazy and has a trigger that is a regular expression
    std::uint64_t n_drawn_ = 0;
    std::size_t n_text_bytes_ = 0;
    OwnStack stack_;    // of the trigger patterns
    double cpu_s_ = 0;  // of the call that runs
};

common_grammar_trigger to_common(const Trigger& trigger) {
    common_grammar_trigger common;
    switch (trigger.kind) {
        case Trigger::Kind::word: common.type = COMMON_GRAMMAR_TRIGGER_TYPE_WORD; break;
        case Trigger::Kind::pattern: common.type = COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN; break;
        case Trigger::Kind::pattern_full: common.type = COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL; break;
        case Trigger::Kind::token: common.type = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN; break;
    }
    common.value = trigger.text;
    common.token = trigger.token;
    return common;
}

// Beyond any logit, and far from overflowing when divided by a temperature.
constexpr float kMaxBias = 1e9F;

void apply_sampling(const SamplingParams& from, common_params_sampling& to) {
    to.temp = from.is_greedy() ? 0.0F : from.temperature;
    to.top_k = from.top_k;
    to.top_p = from.top_p;
    to.min_p = from.min_p;
    to.penalty_repeat = from.repeat_penalty;
    to.penalty_present = from.presence_penalty;
    to.penalty_freq = from.frequency_penalty;
    to.no_perf = true;
    for (const auto& [token, bias] : from.logit_bias) {
        to.logit_bias.push_back({token, bias == -INFINITY ? bias : std::clamp(bias, -kMaxBias, kMaxBias)});
    }
    // Only the links that do something, in llama.cpp's order.
    to.samplers.clear();
    if (from.has_penalties()) to.samplers.push_back(COMMON_SAMPLER_TYPE_PENALTIES);
    if (from.top_k > 0) to.samplers.push_back(COMMON_SAMPLER_TYPE_TOP_K);
    if (from.top_p < 1.0F) to.samplers.push_back(COMMON_SAMPLER_TYPE_TOP_P);
    if (from.min_p > 0.0F) to.samplers.push_back(COMMON_SAMPLER_TYPE_MIN_P);
    to.samplers.push_back(COMMON_SAMPLER_TYPE_TEMPERATURE);
}

void apply_constraint(const ConstraintParams& from, common_params_sampling& to) {
    if (!from.grammar.empty()) {
        // llama.cpp feeds the generation prompt to all grammars but the user's own.
        const common_grammar_type type =
            from.generation_prompt.empty() ? COMMON_GRAMMAR_TYPE_USER : COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT;
        to.grammar = common_grammar(type, from.grammar);
    }
    to.grammar_lazy = from.grammar_is_lazy;
    for (const Trigger& trigger : from.triggers) to.grammar_triggers.push_back(to_common(trigger));
    to.preserved_tokens.insert(from.preserved.begin(), from.preserved.end());
    to.generation_prompt = from.generation_prompt;
    to.reasoning_budget_start = from.think_start;
    to.reasoning_budget_end = from.think_end;
    if (from.think_budget) {
        to.reasoning_budget_tokens = *from.think_budget;
        to.reasoning_budget_forced = from.think_message;
        const Tokens& end = from.think_end.front();
        to.reasoning_budget_forced.insert(to.reasoning_budget_forced.end(), end.begin(), end.end());
    }
}

// llama.cpp adds up the biases of an id named twice, in an order of its own; and a sum that overflows bans everything.
Result<void> check_sampling(const SamplingParams& sampling) {
    std::vector<Token> tokens;
    for (const auto& [token, bias] : sampling.logit_bias) {
        if (std::isnan(bias)) return Error{ErrorCode::bad_args, "logit_bias= holds a bias that is no number"};
        tokens.push_back(token);
    }
    std::sort(tokens.begin(), tokens.end());
    const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
    if (twice == tokens.end()) return {};
    return Error{ErrorCode::bad_args, "logit_bias= names token " + std::to_string(*twice) + " twice"};
}

}  // namespace

Result<std::unique_ptr<engine::TokenSampler>> LlamaSamplerFactory::create(const Request& request) {
    const ModelInfo& info = model_.info();
    const SamplingParams& sampling = request.sampling;
    if (Result<void> checked = check_constraint(request.constraint, model_); !checked) return checked.error();
    if (Result<void> checked = check_sampling(sampling); !checked) return checked.error();
    std::int32_t n_suppressed = 0;
    if (info.has_text) llama_vocab_get_suppress_tokens(model_.vocab(), &n_suppressed);
    const bool is_plain = sampling.is_greedy() && !sampling.has_penalties() && sampling.logit_bias.empty() &&
                          !request.constraint.any() && n_suppressed == 0;
    if (is_plain) return std::unique_ptr<engine::TokenSampler>(std::make_unique<GreedySampler>(decoder_));

    common_params_sampling params;
    apply_sampling(sampling, params);
    apply_constraint(request.constraint, params);
    try {
        // It leaks what it has made when it throws. After check_constraint only a lack of memory is left for that.
        common_sampler_ptr sampler(common_sampler_init(model_.model(), params));
        auto common = std::make_unique<CommonSampler>(std::move(sampler), model_, decoder_, request);
        const Result<void> accepted = common->accept_prompt(request, std::max(params.n_prev, params.penalty_last_n));
        if (!accepted) return accepted.error();
        return std::unique_ptr<engine::TokenSampler>(std::move(common));
    } catch (...) {
        return to_grammar_error();
    }
}

}  // namespace luce::llama
