// Request: one generation as the engine sees it: token ids in, token ids out. Knows no protocol; the daemon translates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "engine/image.h"
#include "memory/manager/kv_cache_manager.h"
#include "prefill/reading_wish.h"
#include "prefill/sparse_text.h"

namespace luce::engine {

inline constexpr std::int32_t kMaxSparsePrompt = 1 << 22;  // tokens of a prompt of which parts are read

// Names a request for its whole life in the engine; never reused within a process.
enum class RequestKey : std::uint64_t {};

// The links of a sampler chain, in llama.cpp's order.
enum class SamplerKind { penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature };

// Neutral values switch a step off: the default is greedy decoding.
struct SamplingParams {
    float temperature = 0.0F;
    float top_p = 1.0F;
    std::int32_t top_k = 0;
    float min_p = 0.0F;
    float repeat_penalty = 1.0F;
    float presence_penalty = 0.0F;
    float frequency_penalty = 0.0F;
    std::int32_t repeat_last_n = 64;  // tokens that the three look back on
    float dry_multiplier = 0.0F;
    float dry_base = 1.75F;
    std::int32_t dry_allowed_length = 2;
    std::int32_t dry_last_n = 64;
    std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};
    float typical_p = 1.0F;
    float top_n_sigma = 0.0F;
    float xtc_probability = 0.0F;
    float xtc_threshold = 0.1F;
    float dynatemp_range = 0.0F;
    float dynatemp_exponent = 1.0F;
    std::vector<SamplerKind> order = {SamplerKind::penalties, SamplerKind::dry,   SamplerKind::top_n_sigma,
                                      SamplerKind::top_k,     SamplerKind::typ_p, SamplerKind::top_p,
                                      SamplerKind::min_p,     SamplerKind::xtc,   SamplerKind::temperature};
    std::uint64_t seed = 0;
    std::vector<std::pair<Token, float>> logit_bias;

    // Below it, dividing by the temperature overflows; what is left there is the largest logit anyway.
    static constexpr float kMinTemperature = 1e-6F;
    bool is_greedy() const { return temperature < kMinTemperature && dynatemp_range <= 0.0F; }

    bool has_penalties() const {
        return (repeat_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F) && repeat_last_n > 0;
    }
    bool has_dry() const { return dry_multiplier > 0.0F && dry_base >= 1.0F && dry_last_n > 0; }
    bool has_xtc() const { return xtc_probability > 0.0F && xtc_threshold <= 0.5F; }
    bool is_ordered(SamplerKind kind) const { return std::find(order.begin(), order.end(), kind) != order.end(); }
};

struct Trigger {
    enum class Kind { word, pattern, pattern_full, token };
    Kind kind = Kind::word;
    std::string text;
    Token token = 0;
};

// What limits the choice of tokens; the meaning of each is llama.cpp's (common_params_sampling), but that a word or a
// token in Markdown's code triggers nothing where no trigger is a pattern.
struct ConstraintParams {
    std::string grammar;  // GBNF; empty: none
    bool grammar_is_lazy = false;
    std::vector<Trigger> triggers;
    std::vector<Token> preserved;
    std::string generation_prompt;
    std::optional<std::int32_t> think_budget;
    Tokens think_start;
    std::vector<Tokens> think_end;
    Tokens think_message;

    bool any() const { return !grammar.empty() || think_budget.has_value(); }
};

struct Request {
    RequestKey key{};
    Tokens prompt;
    std::vector<ImageRun> images;  // within the prompt, in order, without overlaps
    std::int32_t n_generate = 0;
    SamplingParams sampling;
    ConstraintParams constraint;
    Tokens stop_tokens;
    std::int32_t n_least = 0;  // before so many tokens none is chosen that would end it
    bool ignores_eos = false;
    std::int32_t n_logprobs = 0;
    std::optional<std::int32_t> n_prompt_logprobs;  // of each prompt token so many of the likeliest; unset: none …
    Position prompt_logprobs_from = 0;              // … from this position on
    std::int32_t n_generated_before = 0;            // trailing prompt tokens that this request generated earlier
    std::int32_t priority = 0;
    memory::MemoryRequest memory;
    prefill::ReadingWish reading;
    bool compresses = false;  // it only asks what of its prompt would be read

    // ReadingQueue's: of what the prompt was before, if only parts of it are read, or why all of it is in spite of the
    // wish. The prompt is what is read then.
    std::shared_ptr<const prefill::SparseText> sparse = nullptr;
    memory::MemoryRequest whole_memory = {};  // what it said of memory; `memory` says it of what is read
    std::optional<Error> reading_error = std::nullopt;

    // The prompt's tokens whose log-probabilities are wanted: from the first, if there is one, up to the end. Nothing
    // comes before a text's first token, and those that were generated earlier had theirs then.
    Position end_of_prompt_rows() const { return static_cast<Position>(prompt.size()) - n_generated_before; }
    std::optional<Position> first_prompt_row() const {
        const Position first = std::max(1, prompt_logprobs_from);
        if (!n_prompt_logprobs || first >= end_of_prompt_rows()) return std::nullopt;
        return first;
    }

    // What memory knows the prompt by.
    Tokens names() const {
        Tokens names = sparse ? sparse->names() : prompt;
        return memory.salt ? memory::salted(std::move(names), *memory.salt) : names;
    }
};

enum class Finish { eos, limit, stop, cancel };

// What speculation did for a request, or for all since the start. A step is a call of the model that gave the lane at
// least one token; times are wall seconds, a lane's share of a call that served several.
struct SpeculationStats {
    std::int64_t n_steps = 0;
    std::int64_t n_speculated_steps = 0;  // of them, those that verified drafted tokens
    std::int64_t n_drafted = 0;           // tokens verified
    std::int64_t n_accepted = 0;
    double draft_s = 0;
    double verify_s = 0;  // of the speculated steps

    SpeculationStats& operator+=(const SpeculationStats& other) {
        n_steps += other.n_steps;
        n_speculated_steps += other.n_speculated_steps;
        n_drafted += other.n_drafted;
        n_accepted += other.n_accepted;
        draft_s += other.draft_s;
        verify_s += other.verify_s;
        return *this;
    }
};

// Experts of a mixture that tokens read, where some lie on the device and some in the host's memory.
struct ExpertReads {
    std::int64_t n_hits = 0;    // the device had them
    std::int64_t n_misses = 0;  // the host had them

    ExpertReads& operator+=(const ExpertReads& other) {
        n_hits += other.n_hits;
        n_misses += other.n_misses;
        return *this;
    }
};

// Counts are tokens, times are seconds by the clock: from the lane to the first token, and from there to the end.
struct FinishedStats {
    Finish reason = Finish::limit;
    std::int32_t n_prompt = 0;
    std::optional<std::int32_t> n_read;  // of the prompt; unset: all
    std::int32_t n_generated = 0;
    std::int32_t n_reused = 0;  // of what is read: not computed again
    memory::Tier tier = memory::Tier::none;
    memory::Miss miss;
    std::optional<Position> restored;
    double prefill_s = 0;
    double decode_s = 0;
    std::optional<SpeculationStats> speculation;  // unset: this engine does not speculate
    std::optional<ExpertReads> experts;           // of the calls that gave tokens; unset: experts lie in one memory

    // The first token comes out of prefill, so n_generated - 1 of them were decoded.
    double decode_tokens_per_s() const { return decode_s > 0 ? (n_generated - 1) / decode_s : 0; }
};

}  // namespace luce::engine
