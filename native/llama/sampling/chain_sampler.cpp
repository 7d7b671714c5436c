#include "llama/sampling/chain_sampler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <time.h>

#include "common.h"
#include "llama/grammar/constraint_checks.h"
#include "llama/sampling/temperature_draw.h"

namespace luce::llama {
namespace {

using engine::ConstraintParams;
using engine::Request;
using engine::Trigger;

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

ChainSampler::ChainSampler(common_sampler_ptr sampler, ChainShape shape, const Model& model,
                           const LlamaDecoder& decoder, const Request& request)
    : RowSampler(decoder),
      sampler_(std::move(sampler)),
      shape_(std::move(shape)),
      model_(model),
      seed_(request.sampling.seed),
      draws_(!request.sampling.is_greedy()),
      matches_patterns_(has_trigger_patterns(request.constraint)) {}

Result<void> ChainSampler::accept_prompt(const Request& request, std::int32_t n_remembered) {
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

// The draw is the chain's last link: put one with this token's own seed in its place.
void ChainSampler::reseed() {
    llama_sampler* chain = common_sampler_get(sampler_.get());
    llama_sampler_free(llama_sampler_chain_remove(chain, llama_sampler_chain_n(chain) - 1));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(draw_seed(seed_, n_drawn_)));
}

Result<Token> ChainSampler::choose(std::span<const float> logits, std::size_t row) {
    try {
        if (shape_.temperature_alone) {
            cpu_s_ = 0;  // no grammar takes any
            return draw_by_temperature(logits, *shape_.temperature_alone, draw_seed(seed_, n_drawn_), terms_);
        }
        cpu_s_ = -thread_cpu_s();
        if (draws_) reseed();
        Result<Token> chosen = shape_.is_constrained ? choose_constrained(logits, row) : choose_from_candidates(logits);
        cpu_s_ += thread_cpu_s();
        return chosen;
    } catch (...) {
        return to_grammar_error();
    }
}

// Only `common` has the grammar and the budget, and it samples from whole rows alone.
Result<Token> ChainSampler::choose_constrained(std::span<const float> logits, std::size_t row) {
    if (Result<Token> checked = argmax(logits); !checked) return checked;
    common_sampler_sample(sampler_.get(), model_.context(), decoder().batch_index(row));
    return picked(*common_sampler_get_candidates(sampler_.get(), false));
}

Result<Token> ChainSampler::choose_from_candidates(std::span<const float> logits) {
    if (const Result<void> taken = candidates_.take(logits, shape_.cut, find_touched()); !taken) return taken.error();
    llama_sampler* chain = common_sampler_get(sampler_.get());
    for (int i = candidates_.is_cut() ? 1 : 0; i < llama_sampler_chain_n(chain); ++i) {
        llama_sampler_apply(llama_sampler_chain_get(chain, i), &candidates_.array());
    }
    return picked(candidates_.array());
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

// Adds the time that it takes to cpu_s_.
Result<void> ChainSampler::accept(Token token, bool is_generated) {
    if (last_.size() < shape_.n_penalized) {
        last_.push_back(token);
    } else if (!last_.empty()) {
        last_[next_last_++ % last_.size()] = token;
    }
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

}  // namespace luce::llama
