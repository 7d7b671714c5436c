// open_draft_model: which driver a draft file needs, by what the file says of itself.
#pragma once

#include <memory>

#include "base/result.h"
#include "llama/drafting/draft_memory.h"
#include "llama/drafting/draft_options.h"
#include "llama/model/model.h"
#include "speculation/draft_source.h"

namespace luce::llama {

// A source with the memory that it keeps of the texts: one object, seen from two sides.
struct OpenedDraft {
    std::unique_ptr<speculation::DraftSource> source;
    DraftMemory* memory = nullptr;  // the source's; never null
};

// An empty path: the heads in the target's own file, which must have been loaded with them. The target must outlive it.
// Errors: start_failed with the reason, bad_args.
Result<OpenedDraft> open_draft_model(const DraftModelOptions& options, const Model& target);

}  // namespace luce::llama
