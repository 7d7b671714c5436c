#include "memory/manager/snapshot_slots.h"

#include <algorithm>
#include <string>
#include <utility>

namespace luce::memory {
namespace {

constexpr std::size_t kMaxEnded = 64;  // requests that can still be snapshotted after their end

Tokens text_of(const Slot& slot) {
    Tokens text = memory::text_of(*slot.page);
    if (slot.checkpoint != nullptr) text.insert(text.end(), slot.checkpoint->rest.begin(), slot.checkpoint->rest.end());
    return text;
}

Error mismatch(std::int32_t slot) {
    return {ErrorCode::prefix_mismatch,
            "what slot " + std::to_string(slot) + " holds is not the prefix of this prompt"};
}

}  // namespace

Page& SnapshotSlots::page_at(Page& last, Position position) {
    return ancestor(last, std::min(last.index, position / kPageSize - 1));
}

Result<Slot> SnapshotSlots::place_at(LaneId id, std::span<const Token> text, Position n_computed, Position position,
                                     std::span<const float> logits) {
    Lane& lane = lanes_.at(id);
    if (lane.is_lost) return Error{ErrorCode::internal, "this request's memory was lost"};
    Page& page = page_at(*lane.page, position);
    Slot slot;
    slot.page = &page;
    slot.position = position;
    const auto rest =
        text.subspan(static_cast<std::size_t>(page.end()), static_cast<std::size_t>(position - page.end()));
    slot.checkpoint = tree_.find_checkpoint(page, rest);
    const bool has_state = device_.traits().has_state();
    const bool is_complete = slot.checkpoint != nullptr && (logits.empty() || !slot.checkpoint->data->logits.empty());
    const bool needs_checkpoint = has_state || !rest.empty() || !logits.empty();
    if (is_complete || !needs_checkpoint) return slot;
    if (has_state && position != n_computed) {
        if (slot.checkpoint != nullptr) return slot;
        return Error{ErrorCode::unsupported, "the state at position " + std::to_string(position) + " is gone"};
    }
    // Rows that the lane does not see lie in the page that was offloaded.
    const auto next = static_cast<std::size_t>(page.index + 1);
    const bool is_out = next < lane.pages.size() && !lane.pages[next].is_seen;
    Result<Checkpoint*> checkpoint =
        is_out ? checkpoint_within(*lane.page, nullptr, page, static_cast<Position>(rest.size()))
               : checkpoints_.take(id, page, text, n_computed, position, CheckpointKind::mark, logits);
    if (!checkpoint) return checkpoint.error();
    slot.checkpoint = checkpoint.value();
    return slot;
}

std::vector<SnapshotOutcome> SnapshotSlots::advance(LaneId id, std::span<const Token> text, Position n_computed,
                                                    std::span<const float> logits) {
    Lane& lane = lanes_.at(id);
    std::vector<SnapshotOutcome> outcomes;
    std::vector<SnapshotPoint> later;
    for (const SnapshotPoint& point : lane.snapshots) {
        if (point.position > n_computed) {
            later.push_back(point);
            continue;
        }
        const bool is_here = point.position == n_computed;
        Result<Slot> place =
            place_at(id, text, n_computed, point.position, is_here ? logits : std::span<const float>{});
        Result<void> set = place ? slots_.set(point.slot, place.value()) : Result<void>(place.error());
        outcomes.push_back({point, set ? std::nullopt : std::optional(set.error())});
    }
    lane.snapshots = std::move(later);
    return outcomes;
}

Result<Position> SnapshotSlots::snapshot_lane(std::int32_t number, LaneId id, std::span<const Token> text,
                                              Position n_computed) {
    if (const auto& refusal = device_.traits().refusal) return Error{ErrorCode::unsupported, *refusal};
    if (Result<void> checked = slots_.check(number); !checked) return checked.error();
    if (n_computed == 0) return Error{ErrorCode::empty_prompt, "nothing of this request has been computed yet"};
    const Result<Slot> place = place_at(id, text, n_computed, n_computed, {});
    if (!place) return place.error();
    if (Result<void> set = slots_.set(number, place.value()); !set) return set.error();
    return place.value().position;
}

void SnapshotSlots::remember(std::uint64_t owner, Page& page, std::span<const Token> rest) {
    ++page.n_handles;
    ended_.push_back({owner, &page, Tokens(rest.begin(), rest.end())});
    if (ended_.size() > kMaxEnded) {
        forget(ended_.front());
        ended_.pop_front();
    }
}

void SnapshotSlots::forget(const Ended& ended) {
    --ended.page->n_handles;
    tree_.retire(*ended.page);
}

void SnapshotSlots::forget_all_ended() {
    for (const Ended& ended : ended_) forget(ended);
    ended_.clear();
}

Result<Slot> SnapshotSlots::find_ended(std::uint64_t owner) {
    const auto it =
        std::find_if(ended_.rbegin(), ended_.rend(), [owner](const Ended& ended) { return ended.owner == owner; });
    if (it == ended_.rend()) {
        return Error{ErrorCode::unknown_id, "there is no such request whose memory could be kept"};
    }
    Slot slot;
    slot.page = it->page;
    slot.position = it->page->end() + static_cast<Position>(it->rest.size());
    slot.checkpoint = tree_.find_checkpoint(*it->page, it->rest);
    bool is_whole = slot.checkpoint != nullptr || (it->rest.empty() && !device_.traits().has_state());
    for (const Page* page : path_to(*it->page)) is_whole = is_whole && page->is_kept();
    if (is_whole) return slot;
    return Error{ErrorCode::unknown_id,
                 "the memory of that request had to make way for others; a larger --host-cache keeps more"};
}

Result<Position> SnapshotSlots::snapshot_ended(std::int32_t number, std::uint64_t owner) {
    if (const auto& refusal = device_.traits().refusal) return Error{ErrorCode::unsupported, *refusal};
    if (Result<void> checked = slots_.check(number); !checked) return checked.error();
    const Result<Slot> slot = find_ended(owner);
    if (!slot) return slot.error();
    if (Result<void> set = slots_.set(number, slot.value()); !set) return set.error();
    return slot.value().position;
}

Result<void> SnapshotSlots::thin_ended(std::int32_t number, std::uint64_t owner, Position begin, Position end) {
    if (const auto& refusal = device_.traits().refusal) return Error{ErrorCode::unsupported, *refusal};
    if (Result<void> checked = slots_.check(number); !checked) return checked;
    const Result<Slot> whole = find_ended(owner);
    if (!whole) return whole.error();
    if (end > whole.value().position) {
        return Error{ErrorCode::bad_args, "that request's text ends at " + std::to_string(whole.value().position)};
    }
    Slot slot;
    slot.page = &page_at(*whole.value().page, end);
    slot.begin = begin;
    slot.position = end;
    // Held first, so that making room for the checkpoint takes none of its pages away.
    const Slot pages = slot;
    if (Result<void> held = slots_.hold(pages); !held) return held;
    Result<void> set;
    if (end == whole.value().position) {
        slot.checkpoint = whole.value().checkpoint;
    } else if (const Position n_rest = end - slot.page->end(); n_rest > 0 || device_.traits().has_state()) {
        const Result<Checkpoint*> checkpoint =
            checkpoint_within(*whole.value().page, whole.value().checkpoint, *slot.page, n_rest);
        if (checkpoint) {
            slot.checkpoint = checkpoint.value();
        } else {
            set = checkpoint.error();
        }
    }
    if (set) set = slots_.set(number, slot);
    slots_.let_go(pages);
    return set;
}

// A checkpoint behind `page`, n_rest positions on, within a text that goes on beyond it: with state only one that
// stands.
Result<Checkpoint*> SnapshotSlots::checkpoint_within(Page& last, Checkpoint* behind, Page& page, Position n_rest) {
    Page* next = &last;
    while (!next->is_root() && next->parent != &page && next != &page) next = next->parent;
    const bool in_page = next != &page;
    const std::span<const Token> tokens = in_page ? std::span<const Token>(next->tokens) : behind->rest;
    // A copy: making room for the checkpoint may take away the one behind.
    const Tokens rest(tokens.begin(), tokens.begin() + n_rest);
    if (Checkpoint* checkpoint = tree_.find_checkpoint(page, rest)) return checkpoint;
    if (device_.traits().has_state()) {
        return no_state_at(page.end() + n_rest, "cannot go on from attention rows alone");
    }
    // Seen where they lie, not copied: they may still be on their way from the device, and first_rows() waits.
    Result<Blob> rows = in_page ? cache_.rows_of(*next) : Result<Blob>(Blob(behind->data, &behind->data->rows));
    if (!rows) return rows.error();
    auto data = std::make_shared<CheckpointData>();
    data->rows = device_.first_rows(*rows.value(), rows.value()->size() / device_.traits().row_bytes,
                                    static_cast<std::size_t>(n_rest));
    Checkpoint* checkpoint = cache_.keep_checkpoint(page, rest, CheckpointKind::mark, std::move(data), policy_.begin());
    if (checkpoint == nullptr) return Error{ErrorCode::no_room, "--host-cache has no room for the range's last rows"};
    return checkpoint;
}

Error SnapshotSlots::no_state_at(Position position, const char* what) const {
    return {ErrorCode::unsupported, "no state was kept at position " + std::to_string(position) + ": this model (" +
                                        device_.traits().kind + ") " + what};
}

Result<SnapshotSlots::Chain> SnapshotSlots::chain_of(const MemoryRequest& request) const {
    const std::int32_t first = *request.restore_slot;
    const Result<const Slot*> base = slots_.get(first);
    if (!base) return base.error();
    if (base.value()->is_thin()) {
        return Error{ErrorCode::unsupported,
                     "slot " + std::to_string(first) + " is a thin one: restore its base and name it in the chain"};
    }
    Chain chain{base.value(), first, text_of(*base.value())};
    for (const std::int32_t link : request.chain) {
        const Result<const Slot*> slot = slots_.get(link);
        if (!slot) return slot.error();
        const Position n_before = chain.last->position;
        if (slot.value()->begin != n_before) {
            return Error{ErrorCode::prefix_mismatch, "slot " + std::to_string(link) + " begins at " +
                                                         std::to_string(slot.value()->begin) +
                                                         ", but what it extends ends at " + std::to_string(n_before)};
        }
        Tokens longer = text_of(*slot.value());
        if (!std::equal(chain.text.begin(), chain.text.end(), longer.begin(), longer.begin() + n_before)) {
            return Error{ErrorCode::prefix_mismatch,
                         "slot " + std::to_string(link) + " extends another text than the one before it"};
        }
        chain = {slot.value(), link, std::move(longer)};
    }
    return chain;
}

Result<PrefixMatch> SnapshotSlots::restore(std::span<const Token> text, const MemoryRequest& request,
                                           bool needs_logits) const {
    if (const auto& refusal = device_.traits().refusal) return Error{ErrorCode::unsupported, *refusal};
    const Result<Chain> chain = chain_of(request);
    if (!chain) return chain.error();
    const auto& [last, named, known] = chain.value();
    const Position position = request.restore_at.value_or(last->position);
    if (position > last->position) {
        return Error{ErrorCode::bad_args, "slot " + std::to_string(named) + " ends at " +
                                              std::to_string(last->position) +
                                              ", before restore_at=" + std::to_string(position)};
    }
    if (position == 0) return PrefixMatch{};
    if (position > static_cast<Position>(text.size())) return mismatch(named);
    if (!std::equal(known.begin(), known.begin() + position, text.begin())) return mismatch(named);
    const std::vector<Page*> path = path_to(*last->page);
    const bool has_state = device_.traits().has_state();
    const auto n_text = static_cast<Position>(text.size());
    std::optional<PrefixMatch> prefix_match = prefix_match_at(path, tree_.root(), position, text, has_state);
    // The whole prompt is of use only with its last logits; where rows are all, its last token is computed again.
    if (prefix_match && position == n_text && needs_logits && !prefix_match->has_logits) {
        prefix_match = has_state ? std::nullopt : prefix_match_at(path, tree_.root(), position - 1, text, false);
    }
    if (!prefix_match) {
        return no_state_at(position, "can go on only from where a checkpoint stands");
    }
    return *prefix_match;
}

}  // namespace luce::memory
