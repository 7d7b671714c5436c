#include "app/scoring.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include "app/models.h"
#include "daemon/loop/event_loop.h"
#include "daemon/setup/startup.h"
#include "llama/scoring/kept_layer.h"
#include "llama/scoring/layer_choice.h"

namespace luce::app {

namespace {

using daemon::Options;
using llama::LayerChoice;

// The layer whose queries say what matters. None: they are not asked, or cannot be, and PageScoring says why.
Result<std::optional<LayerChoice>> choose_layer(const Options& options, const llama::Model& model,
                                                llama::LlamaKvDevice& device, const Clock& clock) {
    if (options.kvflash_policy == daemon::KvflashPolicy::draft) return std::optional<LayerChoice>();
    auto folder = llama::calibration_folder(std::getenv("XDG_CACHE_HOME"), std::getenv("HOME"));
    const llama::LayerChoiceOptions choice = {options.kvflash_layer, std::move(folder), LUCE_LLAMA_BUILD,
                                              daemon::is_stop_pending};
    Result<LayerChoice> chosen = llama::choose_layer(model, device, options.n_lanes, clock, choice);
    if (chosen) return std::optional(std::move(chosen).value());
    if (chosen.error().code == ErrorCode::bad_args) return chosen.error();
    return std::optional<LayerChoice>();
}

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

Result<llama::PageScoring> open_scoring(const Options& options, const llama::Model& model, llama::LlamaKvDevice& device,
                                        const Clock& clock, int reply_fd) {
    using daemon::KvflashPolicy;
    using llama::ScoringPolicy;
    if (!options.n_kvflash || options.kvflash_policy == KvflashPolicy::lru) return llama::PageScoring();
    llama::ScoringOptions scoring;
    scoring.n_lanes = options.n_lanes;
    const Result<std::optional<LayerChoice>> layer = choose_layer(options, model, device, clock);
    if (!layer) return layer.error();
    scoring.layer = layer.value();
    if (options.kvflash_policy == KvflashPolicy::query) scoring.policy = ScoringPolicy::query;
    if (options.kvflash_policy == KvflashPolicy::draft) scoring.policy = ScoringPolicy::draft;
    if (options.kvflash_scorer) scoring.scorer = to_scorer_options(options, model.info());
    const llama::LoadGuard guard(to_guard_options(options, options.kvflash_scorer.value_or(options.model), reply_fd));
    return llama::PageScoring::open(scoring, model);
}

}  // namespace luce::app
