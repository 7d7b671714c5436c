#include "llama/drafting/draft_sources.h"

#include <llama.h>

#include <utility>

#include "llama/drafting/common_drafts.h"
#include "llama/drafting/dflash_drafts.h"
#include "llama/drafting/draft_context.h"

namespace luce::llama {
namespace {

template <typename Drafts>
Result<OpenedDraft> opened(Result<std::unique_ptr<Drafts>> drafts) {
    if (!drafts) return drafts.error();
    DraftMemory* const memory = drafts.value().get();
    return OpenedDraft{std::move(drafts).value(), memory};
}

}  // namespace

Result<OpenedDraft> open_draft_model(const DraftModelOptions& options, const Model& target) {
    if (options.path.empty()) return opened(CommonDrafts::load(options, target));
    const Result<DraftKind> kind = draft_kind_of(options.path, llama_model_n_embd(target.model()));
    if (!kind) return kind.error();
    const bool has_heads = kind.value() == DraftKind::mtp || kind.value() == DraftKind::assistant;
    if (options.wants_heads && !has_heads) {
        return Error{ErrorCode::start_failed,
                     "--mtp asks for multi-token heads or an assistant, and --draft names another kind of drafter (" +
                         std::string(name_of(kind.value())) + "): leave out one of the two"};
    }
    if (kind.value() == DraftKind::dflash) return opened(DflashDrafts::load(options, target));
    return opened(CommonDrafts::load(options, target));
}

}  // namespace luce::llama
