#include "app/scoring.h"

#include <optional>
#include <utility>

#include "app/models.h"
#include "daemon/setup/startup.h"

namespace luce::app {

namespace {

using daemon::Options;

llama::ScorerOptions to_scorer_options(const Options& options, const llama::ModelInfo& info) {
    return llama::ScorerOptions{.path = *options.kvflash_scorer,
                                .n_lanes = options.n_lanes,
                                .n_ctx = info.n_ctx,
                                .n_threads = options.n_draft_threads.value_or(info.n_threads),
                                .n_gpu_layers = options.n_draft_gpu_layers,
                                .cache_type = options.kvflash_scorer_cache_type,
                                .layer = std::nullopt};
}

}  // namespace

Result<llama::PageScoring> open_scoring(const Options& options, const llama::Model& model, int reply_fd) {
    using daemon::KvflashPolicy;
    using llama::ScoringPolicy;
    if (!options.n_kvflash || options.kvflash_policy == KvflashPolicy::lru) return llama::PageScoring();
    llama::ScoringOptions scoring;
    scoring.n_lanes = options.n_lanes;
    scoring.layer = options.kvflash_layer;
    if (options.kvflash_policy == KvflashPolicy::query) scoring.policy = ScoringPolicy::query;
    if (options.kvflash_policy == KvflashPolicy::draft) scoring.policy = ScoringPolicy::draft;
    if (options.kvflash_scorer) scoring.scorer = to_scorer_options(options, model.info());
    const llama::LoadGuard guard(to_guard_options(options, options.kvflash_scorer.value_or(options.model), reply_fd));
    return llama::PageScoring::open(scoring, model);
}

}  // namespace luce::app
