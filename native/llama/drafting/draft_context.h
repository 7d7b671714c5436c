// DraftContext: the weights and the context of a draft: DFlash, EAGLE-3, a plain draft model, MTP heads in a file of
// their own or in the target's, Gemma 4's assistant. Owns what is not the target's. Knows files, memory and what such a
// draft needs of its target, not how drafts are made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "llama/decoding/context_owner.h"
#include "llama/decoding/graph_cache.h"
#include "llama/drafting/draft_options.h"
#include "llama/model/kv_cache_type.h"
#include "llama/model/memory_refusals.h"
#include "llama/model/model.h"

namespace luce::llama {

inline constexpr int kNoMemory = -2;  // of llama_process(), as of llama_decode()

enum class DraftKind {
    dflash,  // a block at once (dflash_drafts.h); all others token by token (common_drafts.h)
    simple,
    mtp,
    assistant,
    eagle3,
};

// "dflash", "draft", "mtp", "assistant", "eagle3".
const char* name_of(DraftKind kind);

// What the file is, as a draft for a target of this hidden size. A model with MTP heads is these heads if they fit, and
// a plain draft model otherwise. Errors: start_failed.
Result<DraftKind> draft_kind_of(const std::string& path, std::int32_t n_embd_target);

// The target's layers whose input the file's draft reads; none if it reads no such, or is no draft.
std::vector<std::uint32_t> captured_layers(const std::string& path);

class DraftContext final : public ContextOwner {
public:
    // An empty path: the heads in the target's own file, which must have been loaded with them. What the draft reads of
    // the target is switched on in the target's context. The target must outlive it. Errors: start_failed (with the
    // reason why the draft does not fit the target), bad_args.
    static Result<std::unique_ptr<DraftContext>> load(const DraftModelOptions& options, const Model& target);

    // Give the memory back, and take it again once the target is there again. Errors of reload(): start_failed.
    void unload(bool keeps_weights);
    Result<void> reload();

    llama_context* context() const override { return context_.get(); }
    GraphCache& graphs() const { return *graphs_; }
    MemoryRefusals& refusals() { return refusals_; }  // of its computations
    const std::string& architecture() const override { return architecture_; }

    const llama_model* model() const { return weights(); }
    DraftKind kind() const { return kind_; }
    std::int32_t n_vocab() const { return n_vocab_; }
    std::int32_t n_outputs() const { return n_outputs_; }  // most tokens of one call that have one

    // Of its weights and cache types, as memory_identity() makes it.
    const std::string& identity() const { return identity_; }

    // DFlash and EAGLE-3: the target's layers whose inputs it reads; one is the target's number of layers where it
    // reads their output.
    const std::vector<std::int32_t>& target_layers() const { return target_layers_; }

    // It has no cells of its own but reads the target's.
    bool shares_cells() const { return kind_ == DraftKind::assistant; }

private:
    bool reads_features() const { return kind_ == DraftKind::dflash || kind_ == DraftKind::eagle3; }
    DraftContext(const DraftModelOptions& options, const Model& target) : options_(options), target_(target) {}
    Result<void> open();
    Result<void> load_weights();
    Result<void> create_context();
    void read_target() const;
    Error failed(const std::string& text) const;
    llama_model* weights() const { return model_ ? model_.get() : target_.model(); }

    DraftModelOptions options_;
    const Model& target_;
    std::unique_ptr<llama_model, LlamaModelDeleter> model_;        // none where the target's file has the heads
    std::unique_ptr<llama_context, LlamaContextDeleter> context_;  // goes before the model
    std::unique_ptr<GraphCache> graphs_;                           // goes before the context
    MemoryRefusals refusals_;
    DraftKind kind_ = DraftKind::mtp;
    std::string architecture_;
    std::string identity_;
    KvCacheTypes cache_types_;
    std::int32_t n_vocab_ = 0;
    std::int32_t n_outputs_ = 0;
    std::vector<std::int32_t> target_layers_;
};

}  // namespace luce::llama
