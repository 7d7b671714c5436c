#include "app/scoring.h"

#include <optional>
#include <string>
#include <utility>

#include "app/models.h"
#include "daemon/setup/startup.h"

namespace luce::app {

namespace {

using daemon::Options;

// What says which parts of a prompt matter says which pages do.
const std::optional<std::string>& scorer_file(const Options& options) {
    return options.kvflash_scorer ? options.kvflash_scorer : options.prefill_scorer;
}

llama::ScorerOptions to_scorer_options(const Options& options, const llama::ModelInfo& info) {
    return llama::ScorerOptions{.path = *scorer_file(options),
                                .n_lanes = options.n_lanes,
                                .n_ctx = info.n_ctx,
                                .n_threads = options.n_draft_threads.value_or(info.n_threads),
                                .n_gpu_layers = options.n_draft_gpu_layers,
                                .cache_type = options.kvflash_scorer_cache_type,
                                .layer = std::nullopt};
}

// Tokens of a call: a GPU is busy with more, and a CPU takes so many in a moment.
constexpr std::int32_t kGpuCall = 1024;
constexpr std::int32_t kCpuCall = 256;

}  // namespace

Result<std::unique_ptr<llama::PromptScorer>> open_prompt_scorer(const Options& options, const llama::Model& model,
                                                                int reply_fd) {
    const auto load = [&options, &model, reply_fd](const std::string& path) {
        const llama::ModelInfo& info = model.info();
        llama::ScorerOptions scorer;
        scorer.path = path;
        scorer.option = "--prefill-scorer";
        scorer.n_ctx = info.n_ctx;
        scorer.n_threads = options.n_draft_threads.value_or(info.n_threads);
        scorer.n_gpu_layers = options.n_draft_gpu_layers;
        scorer.n_call = info.n_gpu_layers != 0 ? kGpuCall : kCpuCall;
        const llama::LoadGuard guard(to_guard_options(options, path, reply_fd));
        return llama::DraftScorer::load(scorer, model);
    };
    auto scorer = std::make_unique<llama::PromptScorer>(load);
    if (!options.prefill_scorer) return scorer;
    if (const Result<void> opened = scorer->open(*options.prefill_scorer); !opened) return opened.error();
    return scorer;
}

void describe(const llama::PromptScorer& scorer, daemon::StatusFields& fields) {
    const llama::ScorerUsage usage = scorer.usage();
    fields.emplace_back("prefill_scorer_bytes", std::to_string(usage.weights + usage.cells));
    fields.emplace_back("prefill_keys_bytes", std::to_string(usage.keys));
    fields.emplace_back("prefill_scored", std::to_string(scorer.n_read()));
}

Result<llama::PageScoring> open_scoring(const Options& options, const llama::Model& model, int reply_fd) {
    using daemon::KvflashPolicy;
    using llama::ScoringPolicy;
    if (!options.n_kvflash || options.kvflash_policy == KvflashPolicy::lru) return llama::PageScoring();
    llama::ScoringOptions scoring;
    scoring.n_lanes = options.n_lanes;
    scoring.layer = options.kvflash_layer;
    if (options.kvflash_policy == KvflashPolicy::query) scoring.policy = ScoringPolicy::query;
    if (options.kvflash_policy == KvflashPolicy::draft) scoring.policy = ScoringPolicy::draft;
    if (scorer_file(options)) scoring.scorer = to_scorer_options(options, model.info());
    const llama::LoadGuard guard(to_guard_options(options, scorer_file(options).value_or(options.model), reply_fd));
    return llama::PageScoring::open(scoring, model);
}

}  // namespace luce::app
