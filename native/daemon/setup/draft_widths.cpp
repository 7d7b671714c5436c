#include "daemon/setup/draft_widths.h"

namespace luce::daemon {

// llama.cpp's split tensors have room for few views each, of which states to go back to take many.
std::int32_t n_draft_most(const Options& options) {
    if (options.split_mode == SplitModeChoice::tensor) return 0;
    const bool speculates = options.draft || options.mtp || options.draft_ngram;
    return speculates ? options.n_draft_most.value_or(kDraftMost) : 0;
}

std::int32_t n_draft_tree(const Options& options) {
    const bool has_model = options.draft || options.mtp;
    return has_model && n_draft_most(options) > 0 ? options.draft_tree.value_or(0) : 0;
}

}  // namespace luce::daemon
