#include "memory/manager/snapshot_transfer.h"

#include <algorithm>
#include <utility>

namespace luce::memory {

TierLimits SnapshotTransfer::limits() const {
    return {device_.traits().row_bytes, device_.traits().max_state_bytes(), n_vocab_, has_other_ids_};
}

// A model with state reads the last prompt anew where only the answer's end is known: what stands at the prompt's end,
// logits and all, goes along.
std::optional<EarlierCheckpoint> SnapshotTransfer::prompt_end_of(const Slot& slot) const {
    if (!device_.traits().has_state() || slot.checkpoint == nullptr) return std::nullopt;
    std::span<const Token> behind = slot.checkpoint->rest;
    for (const Page* page = slot.page;; page = page->parent) {
        const Checkpoint* last = nullptr;
        for (const Checkpoint& checkpoint : page->checkpoints) {
            const auto n_rest = checkpoint.rest.size();
            const bool is_before = checkpoint.position() > slot.begin && checkpoint.position() < slot.position;
            if (!is_before || n_rest > behind.size() || checkpoint.data->logits.empty()) continue;
            if (!std::equal(checkpoint.rest.begin(), checkpoint.rest.end(), behind.begin())) continue;
            if (last == nullptr || n_rest > last->rest.size()) last = &checkpoint;
        }
        if (last != nullptr) return EarlierCheckpoint{last->position(), last->data};
        if (page->is_root()) return std::nullopt;
        behind = page->tokens;
    }
}

Result<SnapshotContents> SnapshotTransfer::contents_of(std::int32_t number) {
    if (const auto& refusal = device_.traits().refusal) return Error{ErrorCode::unsupported, *refusal};
    const Result<const Slot*> slot = slots_.get(number);
    if (!slot) return slot.error();
    SnapshotContents contents;
    contents.root = tree_.root().name;
    contents.begin = slot.value()->begin;
    std::vector<Page*> of_rows;
    for (Page* page : path_to(*slot.value()->page)) {
        contents.tokens.insert(contents.tokens.end(), page->tokens.begin(), page->tokens.end());
        if (page->end() <= contents.begin) continue;
        Result<Blob> rows = cache_.rows_of(*page);
        if (!rows) return rows.error();
        contents.pages.push_back(std::move(rows).value());
        of_rows.push_back(page);
    }
    contents.scores = scores_of(of_rows);
    if (const Checkpoint* checkpoint = slot.value()->checkpoint) {
        contents.tokens.insert(contents.tokens.end(), checkpoint->rest.begin(), checkpoint->rest.end());
        contents.checkpoint = checkpoint->data;
    }
    contents.earlier = prompt_end_of(*slot.value());
    device_.settle();  // others read the bytes
    return contents;
}

Result<Position> SnapshotTransfer::adopt(std::int32_t number, const SnapshotContents& contents) {
    if (const auto& refusal = device_.traits().refusal) return Error{ErrorCode::unsupported, *refusal};
    if (Result<void> checked = slots_.check(number); !checked) return checked.error();
    const bool needs_checkpoint = device_.traits().has_state() || contents.tokens.size() % kPageSize != 0;
    if (needs_checkpoint && contents.checkpoint == nullptr) {
        return Error{ErrorCode::bad_snapshot, "the snapshot lacks the state at its end"};
    }
    Slot slot;
    slot.page = &tree_.root();
    slot.begin = contents.begin;
    slot.position = static_cast<Position>(contents.tokens.size());
    const std::size_t n_pages = contents.tokens.size() / kPageSize;
    const std::size_t n_before = n_pages - std::min(n_pages, contents.pages.size());
    std::vector<Page*> held;
    const auto let_go = [&](Result<Position> result) {
        for (Page* page : held) cache_.unpin(*page);
        return result;
    };
    // Each page is pinned before it comes, so that none makes way for the next.
    for (std::size_t i = 0; i < n_pages; ++i) {
        const auto tokens = std::span(contents.tokens).subspan(i * kPageSize).first<kPageSize>();
        Page* page = tree_.child(*slot.page, tokens);
        if (page == nullptr) page = &tree_.add(*slot.page, tokens);
        slot.page = page;
        if (i < n_before && !page->is_kept()) {
            tree_.retire(*page);
            return let_go(Error{ErrorCode::bad_snapshot,
                                "a thin snapshot needs what lies before its range: load the "
                                "snapshot that it extends first"});
        }
        if (const Result<void> pinned = cache_.pin(*page); !pinned) {
            tree_.retire(*page);
            return let_go(pinned.error());
        }
        held.push_back(page);
        if (!page->is_kept() && !cache_.keep(*page, contents.pages[i - n_before])) {
            return let_go(Error{ErrorCode::no_room, "--host-cache has no room for this snapshot"});
        }
    }
    // Before the checkpoint's file is written, which has them too.
    if (uses_scores_) add_scores(std::span(held).subspan(n_before), contents.scores);
    const ConversationRef conversation = policy_.begin();
    if (contents.checkpoint != nullptr) {
        const auto rest = std::span(contents.tokens).subspan(n_pages * kPageSize);
        slot.checkpoint =
            cache_.keep_checkpoint(*slot.page, rest, CheckpointKind::mark, contents.checkpoint, conversation);
        if (slot.checkpoint == nullptr) {
            return let_go(Error{ErrorCode::no_room, "--host-cache has no room for this snapshot's checkpoint"});
        }
    }
    if (const Result<void> set = slots_.set(number, slot); !set) return let_go(set.error());
    if (contents.earlier) {
        const auto n = static_cast<std::size_t>(contents.earlier->position / kPageSize);
        const auto rest = std::span(contents.tokens)
                              .subspan(n * kPageSize, static_cast<std::size_t>(contents.earlier->position % kPageSize));
        // Where there is no room for it, the slot is whole without it.
        (void)cache_.keep_checkpoint(n == 0 ? tree_.root() : *held[n - 1], rest, CheckpointKind::prompt_end,
                                     contents.earlier->data, conversation);
    }
    return let_go(slot.position);
}

}  // namespace luce::memory
