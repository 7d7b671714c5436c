// The part of KvCacheManager that sets a running text aside, and goes on with it later.
#include <algorithm>

#include "base/log.h"
#include "memory/manager/kv_cache_manager.h"

namespace luce::memory {

Suspended KvCacheManager::suspend(LaneId id, std::span<const Token> text, Position n_computed, bool is_sound) {
    Suspended suspended;
    suspended.conversation = at(id).conversation;
    suspended.n_prompt = at(id).n_prompt;
    suspended.snapshots = std::move(at(id).snapshots);
    suspended.checkpoints = std::move(at(id).checkpoints);
    suspended.pins = std::move(at(id).pins);
    // Cells of what was to be computed go; a state can only be had again from the last checkpoint.
    const bool is_whole = is_sound || (!device_.traits().has_state() && device_.drop(id, n_computed).ok());
    if (!refusal() && is_whole && !at(id).is_lost && n_computed > 0) {
        Result<Slot> place = place_at(id, text, n_computed, n_computed, {});
        Result<void> held = place ? slots_.hold(place.value()) : Result<void>(place.error());
        if (held) {
            suspended.place = place.value();
            suspended.is_held = true;
        } else {
            log_warn("a suspended request's memory is not held and may have to be computed again: " +
                     held.error().text);
        }
    }
    detach(id);
    return suspended;
}

PrefillStart KvCacheManager::resume(LaneId id, std::span<const Token> text, const Suspended& suspended) {
    MemoryRequest request;
    request.reuse = true;
    request.snapshots = suspended.snapshots;
    request.pins = suspended.pins.spans();
    const Known known = refusal() ? Known{} : walk(text);
    PrefixMatch prefix_match;
    if (suspended.is_held) {
        const auto place =
            prefix_match_at(known.pages, tree_.root(), suspended.place.position, text, device_.traits().has_state());
        if (place) prefix_match = *place;
    }
    if (prefix_match.n == 0 && !refusal()) {
        const Position n_limit = std::min(static_cast<Position>(text.size()) - 1, n_most(known, text, request));
        prefix_match =
            match_prefix(known, tree_.root(), text, PrefixMatchLimits{n_limit, true, device_.traits().has_state()});
    }
    if (const Result<void> attached = attach(id, prefix_match, text, suspended.pins); !attached) {
        log_warn("a suspended request's memory could not be put back and is computed again: " + attached.error().text);
        prefix_match = {};
    }
    open(id, prefix_match, text, request, suspended.conversation);
    at(id).n_prompt = suspended.n_prompt;
    at(id).checkpoints = suspended.checkpoints;
    let_go(suspended);
    return to_prefill_start(prefix_match);
}

void KvCacheManager::let_go(const Suspended& suspended) {
    if (suspended.is_held) slots_.let_go(suspended.place);
}

}  // namespace luce::memory
