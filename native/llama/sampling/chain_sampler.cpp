#include "llama/sampling/chain_sampler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <time.h>

#include "llama/decoding/logit_choice.h"
#include "llama/grammar/constraint_checks.h"
#include "llama/sampling/temperature_draw.h"
#include "records/sampling.h"

namespace luce::llama {
namespace {

using engine::Request;

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

// What the chain has picked of the candidates. Errors: bad_grammar, bad_args (nothing that it could pick).
Result<Token> picked(const llama_token_data_array& candidates) {
    const float logit = candidates.selected < 0 ? -INFINITY : candidates.data[candidates.selected].logit;
    if (std::isfinite(logit)) return candidates.data[candidates.selected].id;
    if (logit == -INFINITY) {
        return Error{ErrorCode::bad_grammar, "no token is left that the grammar and the biases allow"};
    }
    return Error{ErrorCode::bad_args, "the penalties and biases leave no finite logits"};
}

}  // namespace

ChainSampler::ChainSampler(common_sampler_ptr chain, ChainShape shape, std::unique_ptr<TokenConstraint> constraint,
                           const LlamaDecoder& decoder, const engine::SamplingArgs& sampling)
    : RowSampler(decoder),
      sampler_(std::move(chain)),
      shape_(std::move(shape)),
      constraint_(std::move(constraint)),
      seed_(sampling.seed.value_or(0)),
      draws_(!is_greedy(sampling)) {}

Result<void> ChainSampler::accept_prompt(const Request& request, std::int32_t n_remembered) {
    const auto n_prompt = static_cast<std::int32_t>(request.prompt.size());
    const std::int32_t n_read = n_prompt - request.n_generated_before;
    cpu_s_ = 0;
    for (std::int32_t i = std::max(0, n_read - n_remembered); i < n_prompt; ++i) {
        const bool is_image = std::any_of(request.images.begin(), request.images.end(),
                                          [i](const auto& run) { return run.begin <= i && i < run.end; });
        if (is_image) continue;  // no token was there
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

std::uint32_t ChainSampler::seed_of_draw() const { return draw_seed(seed_, n_drawn_); }

// The draw is the chain's last link: put one with this token's own seed in its place. A link before it that draws gets
// a seed too, which must be another one: with the same, the two would draw the same number.
void ChainSampler::reseed() {
    llama_sampler* chain = common_sampler_get(sampler_.get());
    const auto take_last = [chain] { return llama_sampler_chain_remove(chain, llama_sampler_chain_n(chain) - 1); };
    llama_sampler_free(take_last());
    if (shape_.early_draw) {
        std::vector<llama_sampler*> behind;
        while (llama_sampler_chain_n(chain) > shape_.early_draw->link + 1) behind.push_back(take_last());
        llama_sampler_free(take_last());
        llama_sampler_chain_add(chain, shape_.early_draw->make(draw_seed(~seed_, n_drawn_)));
        for (auto link = behind.rbegin(); link != behind.rend(); ++link) llama_sampler_chain_add(chain, *link);
    }
    llama_sampler_chain_add(chain, llama_sampler_init_dist(seed_of_draw()));
}

// Each choice takes one random number of the link, however many tokens there are.
void ChainSampler::skip_draw() {
    llama_sampler* chain = common_sampler_get(sampler_.get());
    llama_token_data any = {0, 0.0F, 0.0F};
    llama_token_data_array tokens = {&any, 1, -1, false};
    llama_sampler_apply(llama_sampler_chain_get(chain, llama_sampler_chain_n(chain) - 1), &tokens);
}

Result<Token> ChainSampler::choose(std::span<const float> logits) {
    try {
        return n_drawn_ < shape_.n_least ? choose_other_than_ends(logits) : choose_any(logits);
    } catch (...) {
        return to_grammar_error();
    }
}

Result<Token> ChainSampler::choose_any(std::span<const float> logits) {
    if (!constraint_) return choose_freely(logits);
    cpu_s_ = -thread_cpu_s();
    Result<Token> chosen = choose_constrained(logits);
    cpu_s_ += thread_cpu_s();
    return chosen;
}

// Where a grammar is at its end, there is no other.
Result<Token> ChainSampler::choose_other_than_ends(std::span<const float> logits) {
    without_ends_.assign(logits.begin(), logits.end());
    for (const Token token : shape_.ends) without_ends_[static_cast<std::size_t>(token)] = -INFINITY;
    Result<Token> chosen = choose_any(without_ends_);
    return chosen || !constraint_ ? chosen : choose_any(logits);
}

Result<Token> ChainSampler::choose_freely(std::span<const float> logits) {
    if (shape_.temperature_alone) return draw_by_temperature(logits, *shape_.temperature_alone, seed_of_draw(), terms_);
    if (draws_) reseed();
    if (const Result<void> taken = candidates_.take(logits, shape_.cut, find_touched()); !taken) return taken.error();
    return apply_chain(candidates_.array(), candidates_.is_cut() ? 1 : 0);
}

// In the order of common_sampler_sample: the token that the budget forces; else what would be chosen without a grammar,
// if the grammar takes it (always, while it waits for its trigger); else a choice from all that it takes.
Result<Token> ChainSampler::choose_constrained(std::span<const float> logits) {
    if (const std::optional<Token> forced = constraint_->forced()) {
        if (Result<Token> checked = argmax(logits); !checked) return checked;
        return choose_forced(*forced, logits[static_cast<std::size_t>(*forced)]);
    }
    Result<Token> chosen = choose_freely(logits);
    if (!chosen || constraint_->allows(chosen.value())) return chosen;
    return choose_from_masked(logits);
}

// No other token is left. The grammar or a bias may forbid this one too.
Result<Token> ChainSampler::choose_forced(Token forced, float logit) {
    llama_token_data only = {forced, logit, 0.0F};
    llama_token_data_array tokens = {&only, 1, -1, false};
    constraint_->mask(tokens);
    return apply_chain(tokens, 0);
}

// Seldom: a model that knows what is wanted of it is seldom refused a token. Draws a second time with the same seed.
Result<Token> ChainSampler::choose_from_masked(std::span<const float> logits) {
    if (shape_.temperature_alone) {
        reseed();
        skip_draw();
    }
    llama_token_data_array& tokens = candidates_.take_all(logits);
    constraint_->mask(tokens);
    return apply_chain(tokens, 0);
}

Result<Token> ChainSampler::apply_chain(llama_token_data_array& tokens, int first_link) {
    llama_sampler* chain = common_sampler_get(sampler_.get());
    for (int i = first_link; i < llama_sampler_chain_n(chain); ++i) {
        llama_sampler_apply(llama_sampler_chain_get(chain, i), &tokens);
    }
    return picked(tokens);
}

// In order, each once.
std::span<const Token> ChainSampler::find_touched() {
    touched_ = shape_.biased;
    touched_.insert(touched_.end(), last_.begin(), last_.end());
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    return touched_;
}

Result<Token> ChainSampler::accept(Token token) {
    try {
        if (Result<void> accepted = accept(token, true); !accepted) return accepted.error();
        ++n_drawn_;
        if (cpu_s_ <= kMaxSampleCpu_s) return token;
        return Error{ErrorCode::bad_grammar, "the grammar or a trigger is too ambiguous: one token took " +
                                                 std::to_string(cpu_s_) + " s to choose"};
    } catch (...) {
        return to_grammar_error();
    }
}

Result<void> ChainSampler::accept(Token token, bool is_generated) {
    if (last_.size() < shape_.n_penalized) {
        last_.push_back(token);
    } else if (!last_.empty()) {
        last_[next_last_++ % last_.size()] = token;
    }
    common_sampler_accept(sampler_.get(), token, is_generated);
    if (!constraint_ || !is_generated) return {};
    cpu_s_ -= thread_cpu_s();
    Result<void> accepted = constraint_->accept(token);
    cpu_s_ += thread_cpu_s();
    return accepted;
}

}  // namespace luce::llama
