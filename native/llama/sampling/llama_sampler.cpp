#include "llama/sampling/llama_sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llama/decoding/logit_choice.h"
#include "llama/grammar/constraint_checks.h"
#include "llama/sampling/chain_sampler.h"
#include "llama/sampling/row_sampler.h"
#include "records/sampling.h"
#include "sampling.h"

namespace luce::llama {
namespace {

using engine::Request;
using engine::SamplerKind;
using engine::SamplingArgs;

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

constexpr std::int32_t kMostRemembered = 1 << 18;  // of the text, by penalties: each lane keeps so many at most
constexpr std::int32_t kMostTouched = 1024;        // by penalties, that they are worth being looked up one by one

constexpr std::size_t kMostBreakers = 16;  // each is looked for in all of the vocabulary

constexpr std::size_t kMostBiased = 512;  // that a search among them for each candidate is cheap

// The two that are greedy's too; the others cut or draw.
bool is_needed(SamplerKind kind, const SamplingArgs& from) {
    if (kind == SamplerKind::penalties) return has_penalties(from);
    if (kind == SamplerKind::dry) return has_dry(from);
    if (is_greedy(from)) return false;
    switch (kind) {
        case SamplerKind::top_n_sigma: return from.top_n_sigma > 0.0F;
        case SamplerKind::top_k: return from.top_k > 0;
        case SamplerKind::typ_p: return from.typical_p < 1.0F;
        case SamplerKind::top_p: return from.top_p < 1.0F;
        case SamplerKind::min_p: return from.min_p > 0.0F;
        case SamplerKind::xtc: return from.xtc_probability > 0.0F && from.xtc_threshold <= 0.5F;
        default: return true;
    }
}

// Only the links that do something, in the order that is asked for; no cut leaves the largest logit out. The
// temperature comes last where decoding is greedy: that is how `common` knows it.
void apply_links(const SamplingArgs& from, common_params_sampling& to) {
    std::vector<std::string> names;
    for (const SamplerKind kind : from.order) {
        if (is_needed(kind, from)) names.emplace_back(name_of(kind));
    }
    to.samplers = common_sampler_types_from_names(names);
    if (is_greedy(from)) to.samplers.push_back(COMMON_SAMPLER_TYPE_TEMPERATURE);
}

void apply_sampling(const SamplingArgs& from, common_params_sampling& to) {
    to.temp = is_greedy(from) ? 0.0F : from.temperature;
    to.top_k = from.top_k;
    to.top_p = from.top_p;
    to.min_p = from.min_p;
    to.penalty_repeat = from.repeat_penalty;
    to.penalty_present = from.presence_penalty;
    to.penalty_freq = from.frequency_penalty;
    to.penalty_last_n = std::min(from.repeat_last_n, kMostRemembered);
    to.dry_multiplier = from.dry_multiplier;
    to.dry_base = from.dry_base;
    to.dry_allowed_length = from.dry_allowed_length;
    to.dry_penalty_last_n = std::min(from.dry_last_n, kMostRemembered);
    to.dry_sequence_breakers = from.dry_breakers;
    to.typ_p = from.typical_p;
    to.top_n_sigma = from.top_n_sigma;
    to.xtc_probability = from.xtc_probability;
    to.xtc_threshold = from.xtc_threshold;
    to.dynatemp_range = from.dynatemp_range;
    to.dynatemp_exponent = from.dynatemp_exponent;
    to.no_perf = true;
    for (const auto& [token, bias] : from.logit_bias) {
        to.logit_bias.push_back({token, bias == -INFINITY ? bias : std::clamp(bias, -kMaxBias, kMaxBias)});
    }
    apply_links(from, to);
}

// Of the chain that apply_sampling() asks for. Penalties change single tokens, which are known.
FirstCut first_cut(const SamplingArgs& sampling, const common_params_sampling& params) {
    if (is_greedy(sampling) && !has_dry(sampling)) return {FirstCut::Kind::largest};
    for (const common_sampler_type link : params.samplers) {
        switch (link) {
            case COMMON_SAMPLER_TYPE_PENALTIES: break;
            case COMMON_SAMPLER_TYPE_TOP_K: return {FirstCut::Kind::top_k, sampling.top_k};
            case COMMON_SAMPLER_TYPE_TOP_P: return {FirstCut::Kind::top_p, 0, 0, sampling.top_p};
            case COMMON_SAMPLER_TYPE_MIN_P:
                return sampling.min_p <= 1.0F ? FirstCut{FirstCut::Kind::min_p, 0, sampling.min_p} : FirstCut{};
            default: return {};
        }
    }
    return {};
}

// `suppressed`: by the vocabulary, whose file may name others than it has.
ChainShape shape_of(const Request& request, const common_params_sampling& params, std::span<const Token> suppressed,
                    std::int32_t n_vocab) {
    ChainShape shape;
    const bool has_links = std::any_of(params.samplers.begin(), params.samplers.end(),
                                       [](auto link) { return link != COMMON_SAMPLER_TYPE_TEMPERATURE; });
    shape.cut = first_cut(request.sampling, params);
    const bool is_penalized = has_penalties(request.sampling) && is_ordered(request.sampling, SamplerKind::penalties);
    if (is_penalized) shape.n_penalized = static_cast<std::size_t>(params.penalty_last_n);
    for (const auto& [token, bias] : request.sampling.logit_bias) shape.biased.push_back(token);
    std::copy_if(suppressed.begin(), suppressed.end(), std::back_inserter(shape.biased),
                 [n_vocab](Token token) { return token >= 0 && token < n_vocab; });
    std::sort(shape.biased.begin(), shape.biased.end());
    // In a table of the vocabulary llama.cpp adds both biases of such a token, elsewhere it adds the first.
    const bool is_any_twice = std::adjacent_find(shape.biased.begin(), shape.biased.end()) != shape.biased.end();
    const bool is_late = shape.n_penalized > 0 || !shape.biased.empty();
    if (shape.cut.kind == FirstCut::Kind::top_p && is_late) shape.cut = {};
    if (!is_greedy(request.sampling) && !has_links && !is_late && request.sampling.dynatemp_range <= 0.0F) {
        shape.temperature_alone =
            is_ordered(request.sampling, SamplerKind::temperature) ? request.sampling.temperature : 1.0F;
    }
    if (params.penalty_last_n > kMostTouched && is_penalized) {
        shape.n_penalized = 0;
        shape.cut = {};
    }
    if (is_any_twice || shape.biased.size() > kMostBiased) shape.cut = {};
    shape.n_least = static_cast<std::uint64_t>(request.n_least);
    return shape;
}

// XTC draws before the last link.
std::optional<ChainShape::Draw> early_draw(llama_sampler& chain, const SamplingArgs& sampling) {
    for (int i = 0; i < llama_sampler_chain_n(&chain); ++i) {
        if (std::string_view(llama_sampler_name(llama_sampler_chain_get(&chain, i))) != "xtc") continue;
        return ChainShape::Draw{i, [p = sampling.xtc_probability, t = sampling.xtc_threshold](std::uint32_t seed) {
                                    return llama_sampler_init_xtc(p, t, 0, seed);
                                }};
    }
    return std::nullopt;
}

// All tokens that end a generation.
Tokens ends_of(const Request& request, const LlamaDecoder& decoder, std::int32_t n_vocab) {
    Tokens ends;
    for (Token token = 0; token < n_vocab; ++token) {
        if (decoder.is_end_of_generation(token)) ends.push_back(token);
    }
    std::copy_if(request.stop_tokens.begin(), request.stop_tokens.end(), std::back_inserter(ends),
                 [n_vocab](Token token) { return token >= 0 && token < n_vocab; });
    return ends;
}

// llama.cpp adds up the biases of an id named twice, in an order of its own; and a sum that overflows bans everything.
Result<void> check_sampling(const SamplingArgs& sampling) {
    if (has_dry(sampling) && sampling.dry_breakers.size() > kMostBreakers) {
        return Error{ErrorCode::bad_args, "dry_breakers= names more than " + std::to_string(kMostBreakers) + " texts"};
    }
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
    const SamplingArgs& sampling = request.sampling;
    if (Result<void> checked = check_constraint(request.constraint, model_); !checked) return checked.error();
    if (Result<void> checked = check_sampling(sampling); !checked) return checked.error();
    if (has_dry(sampling) && !info.has_text) {
        return Error{ErrorCode::bad_args, "dry= needs a vocabulary with texts: this model has ids only"};
    }
    std::int32_t n_suppressed = 0;
    const llama_token* first_suppressed =
        info.has_text ? llama_vocab_get_suppress_tokens(model_.vocab(), &n_suppressed) : nullptr;
    const std::span<const Token> suppressed(first_suppressed, static_cast<std::size_t>(n_suppressed));
    const bool is_plain = is_greedy(sampling) && !has_penalties(sampling) && !has_dry(sampling) &&
                          sampling.logit_bias.empty() && !request.constraint.any() && n_suppressed == 0 &&
                          request.n_least == 0;
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
        shape.early_draw = early_draw(*common_sampler_get(chain.get()), sampling);
        if (request.n_least > 0) shape.ends = ends_of(request, decoder_, info.n_vocab);
        auto sampler = std::make_unique<ChainSampler>(std::move(chain), std::move(shape), std::move(constraint),
                                                      decoder_, sampling);
        const std::int32_t n_remembered = std::max({params.n_prev, has_penalties(sampling) ? params.penalty_last_n : 0,
                                                    has_dry(sampling) ? params.dry_penalty_last_n : 0});
        const Result<void> accepted = sampler->accept_prompt(request, n_remembered);
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
