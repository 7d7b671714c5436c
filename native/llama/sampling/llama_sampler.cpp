#include "llama/sampling/llama_sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "llama/decoding/logit_choice.h"
#include "llama/grammar/constraint_checks.h"
#include "llama/sampling/chain_sampler.h"
#include "llama/sampling/row_sampler.h"
#include "sampling.h"

namespace luce::llama {
namespace {

using engine::Request;
using engine::SamplingParams;

// Greedy decoding with nothing in the way: the largest logit, the first of equal ones.
class GreedySampler final : public RowSampler {
public:
    using RowSampler::RowSampler;

protected:
    Result<Token> choose(std::span<const float> logits) override { return argmax(logits); }
};

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
    if (!request.sampling.is_greedy() && !cuts && !is_late) {
        shape.temperature_alone = request.sampling.temperature;
    }
    if (is_any_twice || shape.biased.size() > kMostBiased) shape.cut = {};
    return shape;
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
    try {
        // Both leak what they have made when they throw. After the checks only a lack of memory is left for that.
        std::unique_ptr<TokenConstraint> constraint;
        if (request.constraint.any()) {
            constraint = std::make_unique<TokenConstraint>(request.constraint, model_.vocab());
        }
        common_sampler_ptr chain(common_sampler_init(model_.model(), params));
        ChainShape shape = shape_of(request, params, suppressed, info.n_vocab);
        auto sampler = std::make_unique<ChainSampler>(std::move(chain), std::move(shape), std::move(constraint),
                                                      decoder_, sampling);
        const Result<void> accepted = sampler->accept_prompt(request, std::max(params.n_prev, params.penalty_last_n));
        if (!accepted) return accepted.error();
        return std::unique_ptr<engine::TokenSampler>(std::move(sampler));
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
        rows.push_back({&sampler, sample.row, decoder_.logits(sample.row)});
        n_logits += rows.back().logits.size();
    }
    if (rows.size() < 2 || n_logits < n_least_shared_) return;
    workers_.run(rows.size(), [&](std::size_t i) { rows[i].sampler->choose_ahead(rows[i].logits, rows[i].row); });
}

}  // namespace luce::llama
