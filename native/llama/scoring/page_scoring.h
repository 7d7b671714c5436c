// PageScoring: who says which pages of a text matter: the model's own queries, a small model beside it, or nobody.
// Chooses and owns them; knows what each of them is, not how it works.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "llama/model/model.h"
#include "llama/scoring/draft_scorer.h"
#include "llama/scoring/layer_choice.h"
#include "llama/scoring/query_scorer.h"

namespace luce::llama {

// Automatic: by queries where the model lets them be seen, else by a scorer where there is one.
enum class ScoringPolicy { automatic, query, draft };

struct ScoringOptions {
    ScoringPolicy policy = ScoringPolicy::automatic;
    std::int32_t n_lanes = 1;
    std::optional<std::int32_t> layer;  // whose queries are asked; unset: by the architecture
    std::optional<ScorerOptions> scorer;
};

class PageScoring {
public:
    PageScoring() = default;  // nobody: the newest pages stay

    // The model must outlive it. Errors: those of choose_layer(), QueryScorer::create() and DraftScorer::load(), where
    // nobody else can be asked.
    static Result<PageScoring> open(const ScoringOptions& options, const Model& model);

    memory::PageScorer* scorer() const;  // null: nobody
    QueryProbe* probe() const { return by_queries_ ? &by_queries_->probe() : nullptr; }
    const std::optional<LayerChoice>& layer() const { return layer_; }  // none: no queries are asked
    ScorerUsage usage() const { return by_draft_ ? by_draft_->usage() : ScorerUsage{}; }

    MemoryRefusals* refusals() const { return by_draft_ ? &by_draft_->refusals() : nullptr; }  // null: it needs none

    // Before the model is unloaded, and after it has been loaded anew. Errors: start_failed, unsupported.
    void unload();
    Result<void> reload();

private:
    Result<void> open_queries(const ScoringOptions& options, const Model& model);

    std::unique_ptr<QueryScorer> by_queries_;
    std::optional<LayerChoice> layer_;
    std::unique_ptr<DraftScorer> by_draft_;
};

}  // namespace luce::llama
