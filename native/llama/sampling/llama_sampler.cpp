#include "llama/sampling/llama_sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "common.h"
#include "llama/decoding/logit_choice.h"
#include "llama/grammar/constraint_checks.h"
#include "llama/sampling/chain_sampler.h"
#include "llama/sampling/row_sampler.h"
#include "sampling.h"

namespace luce::llama {
namespace {

using engine::ConstraintParams;
using engine::Request;
using engine::SamplingParams;
using engine::Trigger;

// Greedy decoding with nothing in the way: the largest logit, the first of equal ones.
class GreedySampler final : public RowSampler {
public:
    using RowSampler::RowSampler;

    bool can_choose_ahead() const override { return true; }

protected:
    Result<Token> choose(std::span<const float> logits, std::size_t) override { return argmax(logits); }
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

// Beyond any logit, and far from overflowing when divided by a temperature, or in the int that llama.cpp's top-k makes
// of 6.4 times a logit.
constexpr float kMaxBias = 1e8F;

constexpr std::size_t kMostBiased = 512;  // that a search among them for each candidate is cheap

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
    // Only the links that do something, in llama.cpp's order; no cut leaves the largest logit out.
    to.samplers.clear();
    if (from.has_penalties()) to.samplers.push_back(COMMON_SAMPLER_TYPE_PENALTIES);
    if (!from.is_greedy()) {
        if (from.top_k > 0) to.samplers.push_back(COMMON_SAMPLER_TYPE_TOP_K);
        if (from.top_p < 1.0F) to.samplers.push_back(COMMON_SAMPLER_TYPE_TOP_P);
        if (from.min_p > 0.0F) to.samplers.push_back(COMMON_SAMPLER_TYPE_MIN_P);
    }
    to.samplers.push_back(COMMON_SAMPLER_TYPE_TEMPERATURE);
}

// Of the chain that apply_sampling() asks for.
FirstCut first_cut(const SamplingParams& sampling) {
    if (sampling.is_greedy()) return {FirstCut::Kind::largest};
    if (sampling.top_k > 0) return {FirstCut::Kind::top_k, sampling.top_k};
    if (sampling.top_p < 1.0F) return {FirstCut::Kind::top_p, 0, 0, sampling.top_p};
    if (sampling.min_p > 0.0F && sampling.min_p <= 1.0F) return {FirstCut::Kind::min_p, 0, sampling.min_p};
    return {};
}

// `suppressed`: by the vocabulary, whose file may name others than it has.
ChainShape shape_of(const Request& request, const common_params_sampling& params, std::span<const Token> suppressed,
                    std::int32_t n_vocab) {
    ChainShape shape;
    shape.cut = first_cut(request.sampling);
    shape.is_constrained = request.constraint.any() || request.constraint.grammar_is_lazy;
    if (request.sampling.has_penalties()) shape.n_penalized = static_cast<std::size_t>(params.penalty_last_n);
    for (const auto& [token, bias] : request.sampling.logit_bias) shape.biased.push_back(token);
    std::copy_if(suppressed.begin(), suppressed.end(), std::back_inserter(shape.biased),
                 [n_vocab](Token token) { return token >= 0 && token < n_vocab; });
    std::sort(shape.biased.begin(), shape.biased.end());
    // In a table of the vocabulary llama.cpp adds both biases of such a token, elsewhere it adds the first.
    const bool is_any_twice = std::adjacent_find(shape.biased.begin(), shape.biased.end()) != shape.biased.end();
    const bool cuts = request.sampling.top_k > 0 || request.sampling.top_p < 1.0F || request.sampling.min_p > 0.0F;
    const bool is_late = shape.n_penalized > 0 || !shape.biased.empty();
    if (shape.cut.kind == FirstCut::Kind::top_p && is_late) shape.cut = {};
    if (!request.sampling.is_greedy() && !cuts && !is_late && !shape.is_constrained) {
        shape.temperature_alone = request.sampling.temperature;
    }
    if (is_any_twice || shape.biased.size() > kMostBiased) shape.cut = {};
    return shape;
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
    const llama_token* first_suppressed =
        info.has_text ? llama_vocab_get_suppress_tokens(model_.vocab(), &n_suppressed) : nullptr;
    const std::span<const Token> suppressed(first_suppressed, static_cast<std::size_t>(n_suppressed));
    const bool is_plain = sampling.is_greedy() && !sampling.has_penalties() && sampling.logit_bias.empty() &&
                          !request.constraint.any() && n_suppressed == 0;
    if (is_plain) return std::unique_ptr<engine::TokenSampler>(std::make_unique<GreedySampler>(decoder_));

    common_params_sampling params;
    apply_sampling(sampling, params);
    apply_constraint(request.constraint, params);
    try {
        // It leaks what it has made when it throws. After check_constraint only a lack of memory is left for that.
        common_sampler_ptr sampler(common_sampler_init(model_.model(), params));
        ChainShape shape = shape_of(request, params, suppressed, info.n_vocab);
        auto chain = std::make_unique<ChainSampler>(std::move(sampler), std::move(shape), model_, decoder_, request);
        const Result<void> accepted = chain->accept_prompt(request, std::max(params.n_prev, params.penalty_last_n));
        if (!accepted) return accepted.error();
        return std::unique_ptr<engine::TokenSampler>(std::move(chain));
    } catch (...) {
        return to_grammar_error();
    }
}

// The rows are found here: libllama puts them in order when it is first asked for one.
void LlamaSamplerFactory::choose_ahead(std::span<const engine::PendingSample> pending) {
    struct Row {
        RowSampler* sampler;
        std::size_t row;
        std::span<const float> logits;
    };
    std::vector<Row> rows;
    std::size_t n_logits = 0;
    for (const engine::PendingSample& sample : pending) {
        auto& sampler = static_cast<RowSampler&>(*sample.sampler);  // create() makes no others
        if (!sampler.can_choose_ahead()) continue;
        rows.push_back({&sampler, sample.row, decoder_.logits(sample.row)});
        n_logits += rows.back().logits.size();
    }
    if (rows.size() < 2 || n_logits < n_least_shared_) return;
    workers_.run(rows.size(), [&](std::size_t i) { rows[i].sampler->choose_ahead(rows[i].logits, rows[i].row); });
}

}  // namespace luce::llama
