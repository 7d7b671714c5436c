#include "llama/llama_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "common.h"
#include "sampling.h"

namespace luce::llama {
namespace {

using engine::ConstraintParams;
using engine::Request;
using engine::SamplingParams;
using engine::TokenLogprob;
using engine::Trigger;

Error no_finite_logits() {
    return {ErrorCode::internal, "the model computed no finite logits (broken weights or an overflow)"};
}

// The largest of up to kBlock values; a NaN never is. Independent accumulators: the compiler makes vectors of them,
// which on a vocabulary of 250,000 saves a twentieth of a fast model's decode step.
constexpr std::size_t kBlock = 512;

float block_max(std::span<const float> block) {
    std::array<float, 16> peaks;
    peaks.fill(-std::numeric_limits<float>::infinity());
    std::size_t i = 0;
    for (; i + peaks.size() <= block.size(); i += peaks.size()) {
        for (std::size_t j = 0; j < peaks.size(); ++j) peaks[j] = block[i + j] > peaks[j] ? block[i + j] : peaks[j];
    }
    for (; i < block.size(); ++i) peaks[0] = block[i] > peaks[0] ? block[i] : peaks[0];
    return *std::max_element(peaks.begin(), peaks.end());
}

// The first token with the largest logit.
Result<Token> argmax(std::span<const float> logits) {
    float peak = -std::numeric_limits<float>::infinity();
    std::size_t peak_block = 0;
    for (std::size_t first = 0; first < logits.size(); first += kBlock) {
        const float block_peak = block_max(logits.subspan(first, std::min(kBlock, logits.size() - first)));
        if (block_peak <= peak) continue;
        peak = block_peak;
        peak_block = first;
    }
    if (!std::isfinite(peak)) return no_finite_logits();
    const auto found = std::find(logits.begin() + static_cast<std::ptrdiff_t>(peak_block), logits.end(), peak);
    return static_cast<Token>(found - logits.begin());
}

// The chosen token's log-probability first, then the n likeliest.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, Token chosen, std::int32_t n) {
    if (logits.empty()) return {};
    const float peak = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - peak);
    const double log_sum = peak + std::log(sum);
    const auto logprob = [&](Token token) {
        return static_cast<float>(logits[static_cast<std::size_t>(token)] - log_sum);
    };
    std::vector<Token> order(logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Token>(i);
    const auto n_top = std::min(static_cast<std::size_t>(n), order.size());
    const auto likelier = [&](Token a, Token b) {
        const float la = logits[static_cast<std::size_t>(a)];
        const float lb = logits[static_cast<std::size_t>(b)];
        return la != lb ? la > lb : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_top), order.end(), likelier);
    std::vector<TokenLogprob> entries = {{chosen, logprob(chosen)}};
    for (std::size_t i = 0; i < n_top; ++i) entries.push_back({order[i], logprob(order[i])});
    return entries;
}

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

class CommonSampler final : public engine::TokenSampler {
public:
    CommonSampler(common_sampler_ptr sampler, const Model& model, const LlamaDecoder& decoder, const Request& request)
        : sampler_(std::move(sampler)),
          model_(model),
          decoder_(decoder),
          seed_(request.sampling.seed),
          draws_(!request.sampling.is_greedy()) {}

    // Bring the state to where it is after the prompt. Throws what llama.cpp's grammar throws.
    void accept_prompt(const Request& request, std::int32_t n_remembered) {
        const auto n_prompt = static_cast<std::int32_t>(request.prompt.size());
        const std::int32_t n_read = n_prompt - request.n_generated_before;
        for (std::int32_t i = std::max(0, n_read - n_remembered); i < n_prompt; ++i) {
            common_sampler_accept(sampler_.get(), request.prompt[static_cast<std::size_t>(i)], i >= n_read);
        }
        n_drawn_ = static_cast<std::uint64_t>(request.n_generated_before);
    }

    Result<Token> sample(std::size_t row) override {
        if (const Result<Token> checked = argmax(decoder_.logits(row)); !checked) return checked;
        try {
            if (draws_) reseed();
            const Token token =
                common_sampler_sample(sampler_.get(), model_.context(), decoder_.batch_index(row));
            const llama_token_data_array* candidates = common_sampler_get_candidates(sampler_.get(), false);
            if (candidates->selected < 0 || candidates->data[candidates->selected].logit == -INFINITY) {
                return Error{ErrorCode::bad_grammar, "no token is left that the grammar and the biases allow"};
            }
            common_sampler_accept(sampler_.get(), token, true);
            ++n_drawn_;
            return token;
        } catch (const std::exception& e) {
            return Error{ErrorCode::bad_grammar, e.what()};
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

    common_sampler_ptr sampler_;
    const Model& model_;
    const LlamaDecoder& decoder_;
    std::uint64_t seed_;
    bool draws_;
    std::uint64_t n_drawn_ = 0;
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

void apply_sampling(const SamplingParams& from, common_params_sampling& to) {
    to.temp = from.temperature;
    to.top_k = from.top_k;
    to.top_p = from.top_p;
    to.min_p = from.min_p;
    to.penalty_repeat = from.repeat_penalty;
    to.penalty_present = from.presence_penalty;
    to.penalty_freq = from.frequency_penalty;
    to.no_perf = true;
    for (const auto& [token, bias] : from.logit_bias) to.logit_bias.push_back({token, bias});
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

Result<void> check_tokens(const ConstraintParams& constraint, std::int32_t n_vocab) {
    std::vector<const Tokens*> lists = {&constraint.preserved, &constraint.think_start, &constraint.think_message};
    for (const Tokens& end : constraint.think_end) lists.push_back(&end);
    Tokens triggers;
    for (const Trigger& trigger : constraint.triggers) triggers.push_back(trigger.token);
    lists.push_back(&triggers);
    for (const Tokens* list : lists) {
        for (const Token token : *list) {
            if (token >= 0 && token < n_vocab) continue;
            return Error{ErrorCode::token_out_of_range, "a constraint names token " + std::to_string(token) +
                                                            ", outside the vocabulary of " + std::to_string(n_vocab)};
        }
    }
    return {};
}

}  // namespace

// llama.cpp's grammar aborts the process when it is handed an end token that it has no place for.
Result<void> LlamaSamplerFactory::check_resumed_tokens(const Request& request) const {
    if (request.constraint.grammar.empty()) return {};
    const auto first = request.prompt.end() - request.n_generated_before;
    const bool has_end = std::any_of(first, request.prompt.end(),
                                     [this](Token token) { return decoder_.is_end_of_generation(token); });
    if (!has_end) return {};
    return Error{ErrorCode::bad_args, "generated= covers an end token: a request with a grammar is over after it"};
}

Result<std::unique_ptr<engine::TokenSampler>> LlamaSamplerFactory::create(const Request& request) {
    const ModelInfo& info = model_.info();
    const SamplingParams& sampling = request.sampling;
    if (request.constraint.any() && !info.has_text) {
        return Error{ErrorCode::unsupported, "this model's vocabulary has ids only (no_vocab): grammars and reasoning "
                                             "budgets need its texts"};
    }
    if (Result<void> checked = check_tokens(request.constraint, info.n_vocab); !checked) return checked.error();
    if (Result<void> checked = check_resumed_tokens(request); !checked) return checked.error();
    std::int32_t n_suppressed = 0;
    if (info.has_text) llama_vocab_get_suppress_tokens(model_.vocab(), &n_suppressed);
    const bool is_plain = sampling.is_greedy() && !sampling.has_penalties() && sampling.logit_bias.empty() &&
                          !request.constraint.any() && n_suppressed == 0;
    if (is_plain) return std::unique_ptr<engine::TokenSampler>(std::make_unique<GreedySampler>(decoder_));

    common_params_sampling params;
    apply_sampling(sampling, params);
    apply_constraint(request.constraint, params);
    try {
        common_sampler_ptr sampler(common_sampler_init(model_.model(), params));
        auto common = std::make_unique<CommonSampler>(std::move(sampler), model_, decoder_, request);
        common->accept_prompt(request, std::max(params.n_prev, params.penalty_last_n));
        return std::unique_ptr<engine::TokenSampler>(std::move(common));
    } catch (const std::regex_error& e) {
        return Error{ErrorCode::bad_grammar, std::string("a trigger pattern is no regular expression: ") + e.what()};
    } catch (const std::invalid_argument& e) {
        return Error{ErrorCode::bad_args, e.what()};
    } catch (const std::exception& e) {
        return Error{ErrorCode::bad_grammar, std::string(e.what()) + " (the log on stderr says where)"};
    }
}

}  // namespace luce::llama
