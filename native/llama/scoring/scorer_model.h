// ScorerModel: the weights and the context of a small model that reads texts beside the target. Owns both. A lane's
// text is a sequence, of which the context holds a window: the newest cells. Knows tokens and cells, not what is made
// of them.
//
// The window makes its memory as constant as the pool's, whatever the length of the texts, and keeps a model within
// the distances that it was trained for. What a token sees depends on its position alone: calls do not cross the
// multiples of a call's tokens, and at each of those the window moves on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "base/token.h"
#include "llama/decoding/context_owner.h"
#include "llama/model/kv_cache_type.h"
#include "llama/model/memory_refusals.h"
#include "llama/model/model.h"
#include "llama/scoring/scorer_options.h"
#include "llama/scoring/scorer_text.h"

namespace luce::llama {

class ScorerModel final : public ContextOwner {
public:
    // The target must outlive it. Errors: start_failed (the reason why it cannot score this target's texts included),
    // bad_args.
    static Result<std::unique_ptr<ScorerModel>> load(const ScorerOptions& options, const Model& target);

    // Give the memory back, and take it again once the target is there again. No sequence holds anything then. Errors
    // of reload(): start_failed.
    void unload();
    Result<void> reload();

    llama_context* context() const override { return context_.get(); }
    const std::string& architecture() const override { return architecture_; }

    // How the target's texts become its own. Only while it is loaded.
    TextVocabularies vocabularies() const;

    MemoryRefusals& refusals() { return refusals_; }  // of its computations
    std::int32_t n_sequences() const { return options_.n_lanes; }
    std::int32_t n_call() const { return options_.n_call; }  // most tokens of a call
    Position n_window() const { return n_window_; }
    std::size_t weights_bytes() const { return weights_bytes_; }
    std::size_t cells_bytes() const { return cells_bytes_; }

    // The first position that is seen from this one on.
    Position window_begin(Position position) const;

    // Computes tokens that go on from where the sequence ends. REQUIRES: they lie within one call. Errors: internal,
    // no_room, out_of_memory; the sequence has to be cleared then.
    Result<void> compute(std::int32_t sequence, Position begin, std::span<const Token> tokens);

    // The sequence ends at `position` now. False: that cannot be, and it has been cleared.
    bool cut(std::int32_t sequence, Position position);
    void clear(std::int32_t sequence);

    // An empty sequence begins as another one does, if cells can be shared. Whether it does.
    bool share(std::int32_t from, std::int32_t to, Position end);

private:
    ScorerModel(const ScorerOptions& options, const Model& target) : options_(options), target_(target) {}
    Result<void> open();
    Result<void> load_weights();
    Result<void> check_vocabulary();
    Result<void> create_context();
    Error failed(const std::string& text) const;

    ScorerOptions options_;
    const Model& target_;
    std::unique_ptr<llama_model, LlamaModelDeleter> model_;
    std::unique_ptr<llama_context, LlamaContextDeleter> context_;  // goes before the model
    MemoryRefusals refusals_;
    std::string architecture_;
    std::string identity_;
    KvCacheTypes cache_types_;
    Position n_window_ = 0;
    std::size_t weights_bytes_ = 0;
    std::size_t cells_bytes_ = 0;
    bool has_same_ids_ = false;
    bool can_go_back_ = false;  // cells of any position can be given up: no windows of its own, no state
};

}  // namespace luce::llama
