#include "app/drafting.h"

#include <optional>
#include <string>
#include <utility>

#include "app/models.h"
#include "base/log.h"
#include "daemon/setup/draft_widths.h"
#include "engine/warm_up.h"
#include "speculation/ngram/ngram_lookup.h"

namespace luce::app {

namespace {

using daemon::Options;
using llama::ModelInfo;

// Why drafts are chains although trees were asked for.
std::optional<std::string> why_chains(const Options& options, const ModelInfo& info,
                                      const engine::DecoderLimits& limits, const engine::SpeculationConfig& config) {
    if (options.draft_tree.value_or(0) == 0) return std::nullopt;
    if (info.tree_refusal) return "this model (" + info.architecture + ") takes no branches: " + *info.tree_refusal;
    bool can_branch = false;
    std::string names;
    for (const auto& source : config.sources) {
        can_branch = can_branch || source->traits().can_branch;
        names += (names.empty() ? "" : "+") + source->traits().name;
    }
    if (!can_branch) return "what drafts (" + names + ") names one token a place; DFlash drafts name several";
    if (limits.n_branches == 0) return "a tree of one token has no branches, or no sequences are left for them";
    return std::nullopt;
}

}  // namespace

Result<Drafting> open_drafting(const Options& options, const llama::Model& model, llama::OpenedDraft opened,
                               engine::Decoder& decoder, const Clock& clock, int reply_fd) {
    engine::SpeculationConfig config;
    config.n_most = n_copy_most(options, model.info().has_recurrent);
    config.is_adaptive = options.draft_gate;
    config.wants_equal_widths = model.info().has_recurrent;
    Drafting drafting;
    if (config.n_most == 0) {
        if (options.draft || options.mtp) log_warn("--draft-max 0: nothing is drafted, and no draft is loaded");
        if (options.split_mode == daemon::SplitModeChoice::tensor) log_info("--split-mode tensor: nothing is drafted");
        return drafting;
    }
    if (options.draft_ngram) {
        constexpr std::int32_t kLeast = 2;
        config.sources.push_back(
            std::make_unique<speculation::NgramLookup>(config.n_most, kLeast, options.draft_answers));
    }
    if (options.draft || options.mtp) {
        if (opened.memory == nullptr) {
            Result<llama::OpenedDraft> loaded = load_draft(options, model, reply_fd);
            if (!loaded) return loaded.error();
            opened = std::move(loaded).value();
        }
        drafting.memory = opened.memory;
        config.sources.push_back(std::move(opened.source));
    }
    if (const auto reason = why_chains(options, model.info(), decoder.limits(), config)) {
        log_warn("--draft-tree: drafts are chains: " + *reason);
    } else {
        config.n_tree = model.info().n_tree;
        config.n_branches = decoder.limits().n_branches;
    }
    drafting.speculator = std::make_unique<engine::Speculator>(std::move(config), options.n_lanes, clock);
    if (options.draft_gate && !options.no_warmup) {
        engine::warm_up(decoder, *drafting.speculator, options.n_lanes, clock);
    }
    return drafting;
}

}  // namespace luce::app
