#include "llama/scoring/page_scoring.h"

#include <string>
#include <utility>

#include "base/log.h"

namespace luce::llama {

Result<PageScoring> PageScoring::open(const ScoringOptions& options, const Model& model) {
    PageScoring scoring;
    if (options.policy != ScoringPolicy::draft) {
        auto by_queries = QueryScorer::create(model, options.n_lanes, model.info().n_threads,
                                              options.layer ? std::optional(options.layer->layer) : std::nullopt);
        if (by_queries) {
            if (options.scorer) {
                log_info(
                    "--kvflash-policy auto: by the model's own queries, and the scorer is not loaded; "
                    "--kvflash-policy draft uses it");
            }
            scoring.by_queries_ = std::move(by_queries).value();
            scoring.layer_ = options.layer;
            return scoring;
        }
        if (options.policy == ScoringPolicy::query) return by_queries.error();
        log_warn(std::string("--kvflash-policy: ") + (options.scorer ? "draft" : "lru") + ", because " +
                 by_queries.error().text);
    }
    if (!options.scorer) return scoring;
    auto by_draft = DraftScorer::load(*options.scorer, model);
    if (!by_draft) return by_draft.error();
    scoring.by_draft_ = std::move(by_draft).value();
    return scoring;
}

memory::PageScorer* PageScoring::scorer() const {
    if (by_queries_) return by_queries_.get();
    return by_draft_.get();
}

void PageScoring::unload() {
    if (by_queries_) by_queries_->unbind();
    if (by_draft_) by_draft_->unload();
}

Result<void> PageScoring::reload() {
    if (by_queries_) return by_queries_->rebind();
    return by_draft_ ? by_draft_->reload() : Result<void>();
}

}  // namespace luce::llama
