// The engine's border with the model: what it needs to have computed, and nothing of how. `llama/` implements these
// three for libllama; tests implement them with arithmetic. All calls come from the one thread that runs the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace luce::engine {

// Consecutive tokens of one lane's text: positions begin .. begin + tokens.size() - 1, following what the lane holds.
// Or a tree: the first token is the root, at `begin`; each other one follows its parent, a token before it, and sees of
// the slice only what leads to it.
struct Slice {
    LaneId lane{};
    Position begin = 0;
    std::span<const Token> tokens;
    std::int32_t n_logits = 0;                   // wanted of so many tokens, the last ones
    std::span<const std::int32_t> parents = {};  // of a tree: of each token, the root's counts for nothing
    // Of an image: rows that stand in for the tokens, and whether each of them sees all the others. REQUIRES: no other
    // slice is in the call then.
    std::span<const float> embeddings = {};
    bool sees_all = false;
    // What is added to a token's position for RoPE to see it there; with places, to the slice's first position: the
    // rows are seen at their places behind that.
    Position rope_shift = 0;
    std::span<const Position> rope_shifts = {};  // the same for each token by itself; empty: one for all
    std::span<const ImagePlace> places = {};
    bool is_certain = false;  // none of its tokens will be taken back
};

struct DecoderLimits {
    std::int32_t n_vocab = 0;
    std::int32_t n_pool = 0;        // cells that all lanes share
    std::int32_t n_ubatch = 0;      // most tokens that one pass over the weights takes
    std::int32_t n_batch = 0;       // most tokens of one decode call
    bool separate_prefill = false;  // decode tokens and prefill run faster in calls of their own
    std::int32_t n_logits = 0;      // most tokens of a call whose logits may be wanted, to choose from
    std::int32_t n_branches = 0;    // most ends of a call's trees beside one a tree; 0: no trees
    std::int32_t n_stages = 1;      // devices that compute a call one after the other, each with another one at a time
    bool waits_for_device = false;  // decode() has time to spare for `overlapped`
    std::int32_t n_prompt_logits = 0;  // beside n_logits: of tokens of prompts, whose logits nothing is chosen from
};

class Decoder {
public:
    virtual ~Decoder() = default;

    virtual const DecoderLimits& limits() const = 0;

    // Compute the slices in one call; `overlapped` is called once when the work has been handed out, as devices compute
    // behind the caller's back: nothing of the call may be used in it. After it the rows of logits stand in the slices'
    // order until the next call: as many for a slice as it wanted, but one at least (empty where it wanted none). A
    // call that wanted none at all may still be under way, if the device computes by itself.
    // Errors: no_room (nothing has changed: free some cells and call again), internal.
    virtual Result<void> decode(std::span<const Slice> slices, const std::function<void()>& overlapped = {}) = 0;

    // Until the last call has been computed. Whoever reads what it left on the device does this by themselves.
    virtual void wait() {}

    // The last call did what later ones like it need not do again: what it took says little of them.
    virtual bool was_first() const { return false; }

    // Other programs took the processor from calls since this was last asked: what those took says little of others. As
    // far as it is seen: not of a call that one thread computes.
    virtual bool met_contention() { return false; }

    // Of the lane's tree in the last call only this way through it was the text: indices of tokens, the root first.
    // REQUIRES: called once for each tree before anything else is done with the lane's memory. Errors: internal; the
    // lane has to be forgotten then.
    virtual Result<void> keep(LaneId lane, std::span<const std::int32_t> path) = 0;

    // Row `row` of the last call: n_vocab floats, valid until the next one; none if no logits were wanted.
    virtual std::span<const float> logits(std::size_t row) const = 0;

    // What tokens of the last call, which wanted logits, read of a mixture's experts: `n` from the `first` of the call.
    // None: they lie in one memory.
    virtual std::optional<ExpertReads> expert_reads(std::size_t first, std::size_t n) const {
        (void)first, (void)n;
        return std::nullopt;
    }

    // Make these the logits of row 0, as if a call had just computed them. Errors: internal.
    virtual Result<void> recall(std::span<const float> logits) = 0;

    // Drop all that the lane holds. REQUIRES: the lane has computed it; what was shown to it is its device's to forget.
    virtual void forget(LaneId lane) = 0;

    virtual bool is_end_of_generation(Token token) const = 0;

    // Work that can wait until nothing is computed, such as weights that lie elsewhere from now on; some milliseconds
    // of it at once.
    virtual bool has_idle_work() const { return false; }
    virtual void use_idle_time() {}
};

struct TokenLogprob {
    Token token = 0;
    float logprob = 0;
};

// One request's sampling state. Which token it picks depends on the logits, the request and the tokens before it,
// never on what else runs.
class TokenSampler {
public:
    virtual ~TokenSampler() = default;

    // Pick from row `row` of the last decode call and advance the state. Errors: internal (no finite logits),
    // bad_grammar (nothing that the grammar allows).
    virtual Result<Token> sample(std::size_t row) = 0;

    // The natural-log probabilities at temperature 1 before any penalty: `chosen` first, then the n likeliest.
    virtual std::vector<TokenLogprob> logprobs(std::size_t row, Token chosen, std::int32_t n) const = 0;
};

struct PendingSample {
    TokenSampler* sampler;
    std::size_t row;
};

class SamplerFactory {
public:
    virtual ~SamplerFactory() = default;

    // These samplers' next calls will be sample() of these rows: they may be prepared now, all at once. Each picks what
    // it would have picked then. REQUIRES: the samplers are this factory's, each once; the calls come before the next
    // decode call.
    virtual void choose_ahead(std::span<const PendingSample>) {}

    // Errors: bad_grammar, bad_args, unsupported.
    virtual Result<std::unique_ptr<TokenSampler>> create(const Request& request) = 0;
};

}  // namespace luce::engine
