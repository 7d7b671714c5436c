#include "daemon/setup/draft_widths.h"

#include <algorithm>

namespace luce::daemon {
namespace {

constexpr std::int32_t kCopyMost = 47;  // three times a drafter's block: long copies seldom end

}  // namespace

// llama.cpp's split tensors have room for few views each, of which states to go back to take many.
std::int32_t n_draft_most(const Options& options) {
    if (options.split_mode == SplitModeChoice::tensor) return 0;
    const bool speculates = options.draft || options.mtp || options.draft_ngram;
    return speculates ? options.n_draft_most.value_or(kDraftMost) : 0;
}

// A small pool is planned for blocks, and states to go back to are kept for one.
std::int32_t n_copy_most(const Options& options, bool has_recurrent) {
    const std::int32_t n_most = n_draft_most(options);
    const bool is_bounded = options.n_kvflash || options.sizes_kvflash;
    const bool may_be_longer =
        n_most > 0 && !options.n_draft_most && options.draft_gate && !has_recurrent && !is_bounded;
    return may_be_longer ? std::max(n_most, kCopyMost) : n_most;
}

std::int32_t n_draft_tree(const Options& options) {
    const bool has_model = options.draft || options.mtp;
    return has_model && n_draft_most(options) > 0 ? options.draft_tree.value_or(0) : 0;
}

}  // namespace luce::daemon
