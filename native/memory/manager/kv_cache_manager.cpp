#include "memory/manager/kv_cache_manager.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>

#include "base/log.h"
#include "memory/eviction/eviction_arrival.h"
#include "memory/residency/page_scorer.h"
#include "memory/tiers/disk_store.h"

namespace luce::memory {
namespace {

PrefillStart to_prefill_start(const PrefixMatch& prefix_match) {
    PrefillStart begun;
    begun.n = prefix_match.n;
    begun.miss = prefix_match.miss;
    begun.tier = prefix_match.tier;
    if (prefix_match.has_logits) begun.logits = prefix_match.data;
    return begun;
}

}  // namespace

KvCacheManager::KvCacheManager(KvDevice& device, DiskStore* disk, MemoryConfig config, const Clock& clock,
                               EvictionKind eviction)
    : device_(device),
      disk_(disk),
      points_(device),
      config_(std::move(config)),
      n_pool_(device.traits().n_cells),
      policy_(clock, eviction),
      tree_(config_.identity),
      cache_(tree_, device, disk, config_.host_budget, policy_, residency() != nullptr),
      slots_(cache_, config_.n_slots),
      pins_(residency()),
      pool_(device, cache_, lanes_, residency(), clock),
      selector_(device, cache_, lanes_, pool_, residency(), clock),
      checkpoints_(device, tree_, cache_, lanes_, selector_, disk != nullptr),
      fetcher_(device, tree_, cache_, policy_, disk, selector_.uses_scores()),
      placer_(device, tree_, cache_, pool_),
      snapshots_(device, tree_, cache_, lanes_, checkpoints_, slots_, policy_),
      transfer_(device, tree_, cache_, slots_, policy_, config_.n_vocab, config_.has_other_ids,
                selector_.uses_scores()),
      texts_(tree_, cache_, slots_, snapshots_, policy_, device_.traits().has_state()),
      exchange_(tree_, cache_, disk) {}

std::shared_ptr<KvCacheManager::Fetch> KvCacheManager::fetch(std::span<const Token> text,
                                                             const MemoryRequest& request) {
    if (refusal() || request.restore_slot || !reuses(request)) return nullptr;
    const auto n_most = static_cast<std::size_t>(request.n_reuse_most.value_or(static_cast<Position>(text.size())));
    return fetcher_.fetch(text.first(std::min(text.size(), n_most)), request.snapshots);
}

Position KvCacheManager::n_known(std::span<const Token> text, const MemoryRequest& request) {
    if (refusal() || !reuses(request)) return 0;
    const Known known = fetcher_.walk(text);
    const PrefixMatchLimits limits{static_cast<Position>(text.size()), false, device_.traits().has_state()};
    const Position n = match_prefix(known, tree_.root(), text, limits).n;
    if (!known.pages.empty()) tree_.retire(*known.pages.back());
    return n;
}

Result<void> KvCacheManager::check(const MemoryRequest& request, Position n_prompt) const {
    if (refusal() && (request.restore_slot || !request.snapshots.empty())) {
        return Error{ErrorCode::unsupported, *refusal()};
    }
    if (request.restore_slot) {
        if (const Result<const Slot*> slot = slots_.get(*request.restore_slot); !slot) return slot.error();
    }
    for (const std::int32_t link : request.chain) {
        if (const Result<const Slot*> slot = slots_.get(link); !slot) return slot.error();
    }
    for (const SnapshotPoint& point : request.snapshots) {
        if (Result<void> checked = slots_.check(point.slot); !checked) return checked;
        if (point.position < 1 || point.position > n_prompt) {
            return Error{ErrorCode::bad_args, "snap= names position " + std::to_string(point.position) +
                                                  ", but the prompt has the positions 1 to " +
                                                  std::to_string(n_prompt)};
        }
    }
    return pins_.check(request, n_prompt, n_pool_);
}

// Snapshots on models with state need a checkpoint where they stand: what has none there yet must be computed again.
Position KvCacheManager::n_most(const Known& known, std::span<const Token> text, const MemoryRequest& request) {
    const auto n_text = static_cast<Position>(text.size());
    Position n_most = std::min(n_text, request.n_reuse_most.value_or(n_text));
    if (!device_.traits().has_state()) return n_most;
    for (const SnapshotPoint& point : request.snapshots) {
        if (!prefix_match_at(known.pages, tree_.root(), point.position, text, true)) {
            n_most = std::min(n_most, point.position);
        }
    }
    return n_most;
}

Result<PrefillStart> KvCacheManager::begin(LaneId lane, std::span<const Token> text, const MemoryRequest& request,
                                           bool needs_logits, const Fetch* fetched) {
    assert(!lanes_.runs(lane));
    PrefixMatch prefix_match;
    std::vector<Page*> known_pages;  // of the text
    if (request.restore_slot) {
        Result<PrefixMatch> restored = snapshots_.restore(text, request, needs_logits);
        if (!restored) return restored.error();
        prefix_match = std::move(restored).value();
        known_pages = prefix_match.pages;
    } else if (!refusal() && reuses(request)) {
        Known known = fetcher_.walk(text);
        const PrefixMatchLimits limits{n_most(known, text, request), needs_logits, device_.traits().has_state()};
        prefix_match = match_prefix(known, tree_.root(), text, limits);
        if (known.n_matched == 0 && fetcher_.has_foreign_disk()) prefix_match.miss = {Miss::Reason::identity, 0};
        known_pages = std::move(known.pages);
    } else {
        prefix_match.miss = {Miss::Reason::off, 0};
    }
    // Before anything has to make way: what this one goes on from is worth more now.
    ConversationRef conversation = arrive(policy_, known_pages, text.size() / kPageSize);
    // Those that were found by name on disk alone, and are not read, count as evicted entries.
    if (!known_pages.empty()) tree_.retire(*known_pages.back());
    if (Result<void> placed = placer_.place(lane, prefix_match, text, pins_.of(request)); !placed) {
        if (request.restore_slot) return placed.error();
        log_warn("a known prefix of " + std::to_string(prefix_match.n) +
                 " tokens could not be put back and is computed again: " + placed.error().text);
        prefix_match = PrefixMatch{};
        prefix_match.miss = {Miss::Reason::evicted, 0};
    }
    open(lane, prefix_match, text, request, std::move(conversation));
    PrefillStart begun = to_prefill_start(prefix_match);
    if (request.restore_slot) begun.restored = prefix_match.n;
    if (fetched != nullptr && fetched->has_read() && begun.n > 0) begun.tier = Tier::disk;
    return begun;
}

void KvCacheManager::open(LaneId id, const PrefixMatch& prefix_match, std::span<const Token> text,
                          const MemoryRequest& request, ConversationRef conversation) {
    Lane lane;
    lane.page = prefix_match.pages.empty() ? &tree_.root() : prefix_match.pages.back();
    cache_.begin_checkpoints(*lane.page);
    for (std::size_t i = 0; i < prefix_match.pages.size(); ++i) {
        lane.pages.push_back({prefix_match.pages[i], prefix_match.sees(i)});
        if (!prefix_match.sees(i)) ++lane.n_out;
    }
    if (!has_cells(device_)) {
        for (Page* page : prefix_match.pages) cache_.enter(*page);
    }
    lane.n_prompt = static_cast<Position>(text.size());
    lane.snapshots = request.snapshots;
    lane.pins = pins_.of(request);
    lane.conversation = std::move(conversation);
    policy_.on_run(*lane.conversation);
    checkpoints_.plan(lane, prefix_match, text, request);
    lanes_.open(id, std::move(lane));
    pool_.note_lanes_changed();
    selector_.advance(id, text, prefix_match.n);
}

// In host memory only a request's beginning moves what is idle (PrefixPlacer): within an answer it would be noticed.
Result<void> KvCacheManager::make_room(std::int32_t n_cells) {
    if (refusal() || !has_cells(device_)) return {};
    pool_.follow_need(n_cells);
    if (!device_.traits().is_host_memory) pool_.set_idle_aside(static_cast<std::size_t>(2 * n_cells / kPageSize));
    return pool_.make_room(n_cells);
}

Position KvCacheManager::n_until_cut(LaneId id, Position n_computed) const {
    const Lane& lane = lanes_.at(id);
    Position cut = selector_.next_choice(lane, n_computed);
    for (const PlannedCheckpoint& checkpoint : lane.checkpoints) {
        if (device_.traits().has_state() && checkpoint.position > n_computed) cut = std::min(cut, checkpoint.position);
    }
    return cut == std::numeric_limits<Position>::max() ? cut : cut - n_computed;
}

std::vector<SnapshotOutcome> KvCacheManager::advance(LaneId id, std::span<const Token> text, Position n_computed,
                                                     std::span<const float> logits) {
    Lane& lane = lanes_.at(id);
    if (refusal()) return {};
    while (lane.page->end() + kPageSize <= n_computed && !lane.is_lost) {
        lane.is_lost = !seal(id, lane, text);
        pool_.note_lanes_changed();
    }

    checkpoints_.advance(id, text, n_computed, logits);
    std::vector<SnapshotOutcome> outcomes = snapshots_.advance(id, text, n_computed, logits);
    selector_.advance(id, text, n_computed);
    if (n_computed >= lane.n_prompt - 1) checkpoints_.save_late(lane);
    return outcomes;
}

// Name the lane's next full page. Where the tree knows it already, the lane goes on with the known one's cells (or the
// known one gets the lane's).
bool KvCacheManager::seal(LaneId id, Lane& lane, std::span<const Token> text) {
    const Position begin = lane.page->end();
    const auto tokens = text.subspan(static_cast<std::size_t>(begin)).first<kPageSize>();
    Page* page = tree_.child(*lane.page, tokens);
    if (page == nullptr) page = &tree_.add(*lane.page, tokens);
    if (has_cells(device_)) {
        std::array<Cell, kPageSize> cells{};
        if (const Result<void> found = device_.find(id, begin, cells); !found) {
            log_error("a lane's cells were not found and its text is not kept: " + found.error().text);
            tree_.retire(*page);
            return false;
        }
        if (page->is_resident() && !page->is_aside) {
            device_.hide(id, cells);
            device_.show(id, page->cells);
            cache_.enter(*page);
        } else {
            cache_.adopt_and_enter(*page, cells);
        }
    } else if (page->is_kept()) {
        cache_.enter(*page);
    } else {
        cache_.adopt_and_enter(*page, {});
    }
    lane.page = page;
    cache_.follow_checkpoints(*page);
    lane.pages.push_back({page, true});
    return true;
}

void KvCacheManager::detach(LaneId id) {
    Lane& lane = lanes_.at(id);
    checkpoints_.save_late(lane);
    policy_.on_end(*lane.conversation, lane.page->index + 1);
    for (std::size_t i = lane.pages.size(); i-- > 0;) {
        Page& page = *lane.pages[i].page;
        if (lane.pages[i].is_seen) {
            cache_.leave(page, lane.conversation);
        } else {
            cache_.leave_out(page, lane.conversation);
        }
    }
    if (!refusal()) device_.forget(id);
    if (config_.residency && config_.residency->scorer != nullptr) config_.residency->scorer->forget(id);
    lanes_.close(id);
    pool_.note_lanes_changed();
}

void KvCacheManager::end(LaneId id, std::uint64_t owner, std::span<const Token> text, Position n_computed,
                         std::span<const float> logits, bool is_valid) {
    Lane& lane = lanes_.at(id);
    if (is_valid && !refusal() && !lane.is_lost && n_computed > 0) {
        // The logits of an answer's end are of use only where they cannot be computed again from the position before.
        const auto kept = device_.traits().has_state() ? logits : std::span<const float>{};
        checkpoints_.take_here(id, text, n_computed,
                               n_computed > lane.n_prompt ? CheckpointKind::answer_end : CheckpointKind::prompt_end,
                               kept);
        if (!lane.page->is_root()) lane.page->ended = lane.conversation;
        snapshots_.remember(owner, *lane.page, part(text, lane.page->end(), n_computed));
        fetcher_.touch(*lane.page);
    }
    detach(id);
}

Suspended KvCacheManager::suspend(LaneId id, std::span<const Token> text, Position n_computed, bool is_sound) {
    Suspended suspended;
    Lane& lane = lanes_.at(id);
    suspended.conversation = lane.conversation;
    suspended.n_prompt = lane.n_prompt;
    suspended.n_computed = n_computed;
    suspended.snapshots = std::move(lane.snapshots);
    suspended.checkpoints = std::move(lane.checkpoints);
    suspended.pins = std::move(lane.pins);
    // Cells of what was to be computed go; a state can only be had again from the last checkpoint.
    const bool is_whole = is_sound || (!device_.traits().has_state() && device_.drop(id, n_computed).ok());
    if (!refusal() && is_whole && !lane.is_lost && n_computed > 0) {
        Result<Slot> place = snapshots_.place_at(id, text, n_computed, n_computed, {});
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
    const Known known = refusal() ? Known{} : fetcher_.walk(text);
    PrefixMatch prefix_match;
    if (suspended.is_held) {
        const auto place =
            prefix_match_at(known.pages, tree_.root(), suspended.place.position, text, device_.traits().has_state());
        if (place) prefix_match = *place;
    }
    if (prefix_match.n == 0 && !refusal()) {
        const Position n_limit = std::min(suspended.n_computed, n_most(known, text, request));
        prefix_match =
            match_prefix(known, tree_.root(), text, PrefixMatchLimits{n_limit, true, device_.traits().has_state()});
    }
    if (const Result<void> placed = placer_.place(id, prefix_match, text, suspended.pins); !placed) {
        log_warn("a suspended request's memory could not be put back and is computed again: " + placed.error().text);
        prefix_match = {};
    }
    open(id, prefix_match, text, request, suspended.conversation);
    lanes_.at(id).n_prompt = suspended.n_prompt;
    lanes_.at(id).checkpoints = suspended.checkpoints;
    let_go(suspended);
    return to_prefill_start(prefix_match);
}

void KvCacheManager::let_go(const Suspended& suspended) {
    if (suspended.is_held) slots_.let_go(suspended.place);
}

void KvCacheManager::clear(bool with_disk) {
    snapshots_.forget_all_ended();
    cache_.clear();
    if (with_disk) fetcher_.clear_disk();
}

void KvCacheManager::watch_pages(bool on) {
    PageJournal& journal = tree_.journal();
    if (!on) return journal.stop();
    journal.start(tree_, [this](const PageName& name) { return disk_ != nullptr && disk_->has_page(name); });
    if (disk_ != nullptr) {
        disk_->on_page_gone([&journal](const PageName& name) { journal.note_gone_from_disk(name); });
    }
}

MemoryStatus KvCacheManager::status() const {
    MemoryStatus status;
    status.cache = cache_.usage();
    status.n_tree_pages = tree_.n_pages();
    status.n_slots_used = slots_.n_used();
    status.n_aside_pages = cache_.n_aside_pages();
    status.n_spanned_cells = refusal() ? 0 : device_.n_spanned_cells(0);
    status.page_bytes = cache_.page_bytes();
    status.tail_bytes = device_.traits().state_bytes;
    if (config_.residency) {
        status.residency = pool_.totals();
        status.residency->lanes = pool_.pages_of_lanes();
    }
    return status;
}

std::optional<std::string> KvCacheManager::check_integrity() const {
    if (std::optional<std::string> wrong = cache_.check_integrity()) return wrong;
    if (std::optional<std::string> wrong = pool_.check_integrity()) return wrong;
    return slots_.check_integrity();
}

}  // namespace luce::memory
