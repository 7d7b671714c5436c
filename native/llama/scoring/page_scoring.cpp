#include "llama/scoring/page_scoring.h"

#include <string>
#include <utility>

#include "base/log.h"

namespace luce::llama {

Result<void> PageScoring::open_queries(const ScoringOptions& options, const Model& model) {
    Result<LayerChoice> layer = choose_layer(model, options.n_lanes, options.layer);
    if (!layer) return layer.error();
    auto scorer = QueryScorer::create(model, options.n_lanes, model.info().n_threads, layer.value().layer);
    if (!scorer) return scorer.error();
    by_queries_ = std::move(scorer).value();
    layer_ = std::move(layer).value();
    return {};
}

Result<PageScoring> PageScoring::open(const ScoringOptions& options, const Model& model) {
    PageScoring scoring;
    if (options.policy != ScoringPolicy::draft) {
        const Result<void> by_queries = scoring.open_queries(options, model);
        if (by_queries) {
            if (options.scorer) {
                log_info(
                    "--kv-offload-policy auto: by the model's own queries, and the scorer is not loaded; "
                    "--kv-offload-policy draft uses it");
            }
            return scoring;
        }
        const Error& error = by_queries.error();
        if (options.policy == ScoringPolicy::query || error.code == ErrorCode::bad_args) return error;
        log_warn(std::string("--kv-offload-policy: ") + (options.scorer ? "draft" : "lru") + ", because " + error.text);
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
