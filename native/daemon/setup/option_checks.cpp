#include "daemon/setup/option_checks.h"

#include <algorithm>
#include <string_view>

#include "memory/residency/residency.h"
#include "memory/tiers/blob.h"

namespace luce::daemon {
namespace {

// How a draft model is to be loaded says nothing where there is none. A scorer is a small model beside the large one,
// too: where it runs is said for both.
Result<void> check_draft(const Options& options) {
    if (options.draft || options.mtp) return {};
    const bool has_scorer = options.kvflash_scorer.has_value();
    const std::pair<const char*, bool> given[] = {
        {"--draft-cache-type-k", options.draft_cache_type_k.has_value()},
        {"--draft-cache-type-v", options.draft_cache_type_v.has_value()},
        {"--draft-gpu-layers", options.n_draft_gpu_layers.has_value() && !has_scorer},
        {"--draft-threads", options.n_draft_threads.has_value() && !has_scorer}};
    for (const auto& [name, is_given] : given) {
        if (is_given)
            return bad_args(std::string(name) + " is for a draft model: name one with --draft, or give --mtp");
    }
    return {};
}

// Pages of --kv-offload-pin that a lane would not keep anyhow.
std::int64_t n_pinned_pages(const Options& options) {
    const memory::PinnedRanges pins(options.kvflash_pins);
    return static_cast<std::int64_t>(pins.n_from(memory::ResidencyRules{}.n_sinks));
}

// How a bounded pool is used says nothing where there is none.
Result<void> check_nothing_needs_kvflash(std::span<const std::string_view> given) {
    constexpr std::string_view kOfIt = "--kv-offload-";
    const auto needless =
        std::find_if(given.begin(), given.end(), [&](std::string_view name) { return name.starts_with(kOfIt); });
    if (needless == given.end()) return {};
    return bad_args(std::string(*needless) +
                    " is for a pool that texts may outgrow: give --kv-offload N or --kv-offload " +
                    "auto too, or leave it out");
}

// What is pinned takes room in each lane.
Result<void> check_pins(const Options& options, std::int64_t n_pool) {
    if (options.n_ctx) {
        if (Result<void> checked = check_pins_within(options, *options.n_ctx); !checked) return checked;
    }
    const std::int64_t n_pages = n_pinned_pages(options);
    const std::int64_t n_least = n_least_pool(options, 0);
    if (n_pages == 0 || n_least <= n_pool) return {};
    const std::int64_t n_rest = n_pool - n_least + n_pages * memory::kPageSize * options.n_lanes;
    const std::int64_t n_most = std::max<std::int64_t>(0, n_rest) / options.n_lanes / memory::kPageSize;
    const std::string pool = options.sizes_kvflash ? "a pool of " + std::to_string(n_pool) + " tokens"
                                                   : "--kv-offload " + std::to_string(n_pool);
    return bad_args("--kv-offload-pin holds " + std::to_string(n_pages * memory::kPageSize) +
                    " tokens in whole pages, in each of " + std::to_string(options.n_lanes) + " lanes: " + pool +
                    " has room for " + std::to_string(n_most * memory::kPageSize) + "; for these it takes " +
                    std::to_string(n_least));
}

// Drafters read a text's ids, and a bounded pool forgets by them: neither knows what stands for an image.
Result<void> check_images(const Options& options) {
    if (!options.mmproj) return {};
    if (options.draft || options.mtp) {
        return bad_args("--mmproj cannot be had together with --draft or --mtp yet: their drafters read no images");
    }
    if (options.n_kvflash) return bad_args("--mmproj cannot be had together with --kv-offload yet");
    return {};
}

// A drafter computes with tensors of the model's, and a bounded pool's scoring reads what attention computes: both want
// them whole on one device.
Result<void> check_split_mode(const Options& options) {
    if (options.split_mode != SplitModeChoice::tensor) return {};
    const std::pair<const char*, bool> refused[] = {{"--draft", options.draft.has_value()},
                                                    {"--mtp", options.mtp},
                                                    {"--kv-offload", options.n_kvflash.has_value()},
                                                    {"--moe-cache-mib", options.moe_cache_mib > 0}};
    for (const auto& [name, is_given] : refused) {
        if (is_given)
            return bad_args(std::string("--split-mode tensor cannot be had together with ") + name + ": use layer");
    }
    if (options.flash_attention == FlashAttentionChoice::off) {
        return bad_args("--split-mode tensor needs flash attention: leave --flash-attn off out, or use layer");
    }
    return {};
}

// A scorer or a layer that would not be asked, and a policy that has nobody to ask.
Result<void> check_policy(const Options& options, std::span<const std::string_view> given) {
    const auto is_policy = [&](KvflashPolicy one) {
        return options.kvflash_policy == one || options.kvflash_policy == KvflashPolicy::automatic;
    };
    if (options.kvflash_policy == KvflashPolicy::draft && !options.kvflash_scorer && !options.prefill_scorer) {
        return bad_args(
            "--kv-offload-policy draft needs a small model that reads the texts: give --kv-offload-scorer FILE");
    }
    if (options.kvflash_scorer && !is_policy(KvflashPolicy::draft)) {
        return bad_args("--kv-offload-scorer is for --kv-offload-policy draft (or auto): the one given asks no scorer");
    }
    const bool has_layer = std::find(given.begin(), given.end(), "--kv-offload-layer") != given.end();
    if (has_layer && !is_policy(KvflashPolicy::query)) {
        return bad_args("--kv-offload-layer is for --kv-offload-policy query (or auto): the one given asks no layer");
    }
    if (options.host_cache_type && (options.n_kvflash || options.sizes_kvflash)) {
        return bad_args("--host-cache-type does not go with --kv-offload, which reads in pages what is in them");
    }
    if (options.kvflash_scorer_cache_type && !options.kvflash_scorer) {
        return bad_args("--kv-offload-scorer-cache-type is for a scorer: name one with --kv-offload-scorer FILE");
    }
    return {};
}

Result<void> check_prefill(const Options& options) {
    if (options.prefill != ReadingChoice::full && !options.prefill_scorer) {
        return bad_args("--prefill auto and sparse need a small model that chooses: give --prefill-scorer FILE");
    }
    return {};
}

// Two words for one number, and what belongs to a way of scaling that is not the one given.
Result<void> check_rope(const Options& options) {
    const bool has_scale = options.rope_scale || options.rope_freq_scale;
    if (options.rope_scale && options.rope_freq_scale) {
        return bad_args("--rope-scale and --rope-freq-scale both say how far positions are scaled: give one of them");
    }
    if (options.rope_scaling == RopeScalingChoice::none && has_scale) {
        return bad_args("--rope-scaling none scales nothing: leave --rope-scale and --rope-freq-scale out");
    }
    if (!options.rope_scaling || options.rope_scaling == RopeScalingChoice::yarn) return {};
    const std::pair<const char*, bool> of_yarn[] = {{"--yarn-orig-ctx", options.yarn_orig_ctx.has_value()},
                                                    {"--yarn-ext-factor", options.yarn_ext_factor.has_value()},
                                                    {"--yarn-attn-factor", options.yarn_attn_factor.has_value()},
                                                    {"--yarn-beta-slow", options.yarn_beta_slow.has_value()},
                                                    {"--yarn-beta-fast", options.yarn_beta_fast.has_value()}};
    for (const auto& [name, is_given] : of_yarn) {
        if (is_given) return bad_args(std::string(name) + " is for --rope-scaling yarn: give that, or leave it out");
    }
    return {};
}

// The smallest pool that every lane can go on in, and one of them can read its prompt.
Result<void> check_residency(const Options& options, std::span<const std::string_view> given) {
    if (!options.n_kvflash) return check_nothing_needs_kvflash(given);
    const std::int32_t n = *options.n_kvflash;
    if (options.n_pool) return bad_args("--kv-offload and --pool both name the size of the pool: give one of them");
    if (options.flash_attention == FlashAttentionChoice::off) {
        return bad_args("--kv-offload needs flash attention: without it a position's values are not stored together");
    }
    if (options.sizes_kvflash) return check_pins(options, kMaxCells);
    if (Result<void> checked = check_pins(options, n); !checked) return checked;
    const std::int64_t n_least = n_least_pool(options, 0);  // its windows are known once it is loaded
    if (n < n_least) {
        return bad_args("--kv-offload " + std::to_string(n) + " is too small: " + std::to_string(options.n_lanes) +
                        " lanes and slices of --ubatch " + std::to_string(options.ubatch()) + " need at least " +
                        std::to_string(n_least) + "; fewer --lanes or a smaller --ubatch need less");
    }
    if (n % memory::kPageSize != 0) {
        return bad_args("--kv-offload " + std::to_string(n) + " is no multiple of a page's " +
                        std::to_string(memory::kPageSize) +
                        " tokens: " + std::to_string((n / memory::kPageSize + 1) * memory::kPageSize) + " is");
    }
    return {};
}

// What says how answers are made, where none are.
Result<void> check_embedding(std::span<const std::string_view> given) {
    constexpr std::string_view kUsed[] = {
        "--model", "--embedding", "--ctx", "--ubatch",    "--threads",      "--gpu-layers",     "--flash-attn",
        "--queue", "--stream-fd", "--mux", "--log-level", "--load-timeout", "--die-with-parent"};
    const auto needless = std::ranges::find_if(
        given, [&](std::string_view name) { return std::ranges::find(kUsed, name) == std::end(kUsed); });
    if (needless == given.end()) return {};
    return bad_args(std::string(*needless) + " is of no use with --embedding: leave it out");
}

}  // namespace

Result<void> check_together(const Options& options, std::span<const std::string_view> given) {
    if (options.wants_help || options.wants_version || options.rpc_worker) return {};
    if (options.model.empty()) return bad_args("--model FILE is missing");
    if (options.embedding != EmbeddingPooling::none) return check_embedding(given);
    if (Result<void> checked = check_residency(options, given); !checked) return checked;
    if (Result<void> checked = check_policy(options, given); !checked) return checked;
    if (options.n_pool && options.n_ctx && *options.n_pool < *options.n_ctx) {
        return bad_args("--pool " + std::to_string(*options.n_pool) + " is smaller than --ctx " +
                        std::to_string(*options.n_ctx) + ": a lane's text has to fit the pool");
    }
    const std::int32_t n_call = options.call();
    if (options.n_lanes > n_call) {
        return bad_args("--lanes " + std::to_string(options.n_lanes) + " needs --ubatch and --batch of at least that");
    }
    if (Result<void> checked = check_images(options); !checked) return checked;
    if (Result<void> checked = check_split_mode(options); !checked) return checked;
    if (Result<void> checked = check_rope(options); !checked) return checked;
    if (Result<void> checked = check_prefill(options); !checked) return checked;
    return check_draft(options);
}

std::int64_t n_least_pool(const Options& options, std::int32_t n_window) {
    const std::int32_t n_block = 1 + options.n_draft_most.value_or(kDraftMost);
    const std::int32_t n_call = options.call();
    const std::int64_t n_pinned = n_pinned_pages(options) * memory::kPageSize;
    const std::int64_t n_cells =
        std::int64_t{options.n_lanes} * (memory::least_cells(memory::ResidencyRules{}, n_block) + n_pinned) + n_call;
    const std::int64_t n_most = std::max(n_cells, std::int64_t{options.n_lanes} * n_window + n_call);
    return (n_most + memory::kPageSize - 1) / memory::kPageSize * memory::kPageSize;
}

Result<void> check_pins_within(const Options& options, std::int32_t n_ctx) {
    for (const PositionSpan& pin : options.kvflash_pins) {
        if (pin.end <= n_ctx) continue;
        return bad_args("--kv-offload-pin " + std::to_string(pin.begin) + ":" + std::to_string(pin.end) +
                        " goes beyond any text: --ctx is " + std::to_string(n_ctx));
    }
    return {};
}

}  // namespace luce::daemon
