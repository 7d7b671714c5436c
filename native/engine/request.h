// Request: one generation as the engine sees it: token ids in, token ids out. Knows no protocol; the daemon translates.
#pragma once

#include <algorithm>
#include <cstdint>
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
#include "records/records.h"

namespace luce::engine {

inline constexpr std::int32_t kMaxSparsePrompt = 1 << 22;  // tokens of a prompt of which parts are read

// Names a request for its whole life in the engine; never reused within a process.
enum class RequestKey : std::uint64_t {};

using records::ExpertReads;
using records::GenerationStats;
using records::SamplerKind;
using records::SamplingArgs;
using records::Speculation;
using records::StopReason;

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
    SamplingArgs sampling;
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

// Of a request that is cancelled before it has a lane.
inline GenerationStats cancelled_early(const Request& request) {
    GenerationStats stats;
    stats.stop = StopReason::cancel;
    stats.miss = "none";
    stats.n_prompt =
        static_cast<std::int32_t>(request.sparse ? request.sparse->prompt().size() : request.prompt.size());
    if (request.sparse) stats.n_read = static_cast<std::int32_t>(request.prompt.size());
    return stats;
}

}  // namespace luce::engine
