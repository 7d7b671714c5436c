// The part of KvCacheManager that runs lanes: begin, advance, end.
#include "memory/manager/kv_cache_manager.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <new>

#include "base/log.h"
#include "memory/eviction/eviction_arrival.h"
#include "memory/residency/page_scorer.h"
#include "memory/tiers/disk_store.h"

namespace luce::memory {
namespace {

constexpr std::int32_t kFewIdleCells = 256;  // libllama looks at cells by as many
constexpr std::size_t kCheckpointsShare =
    16;                                      // of the host's bytes, for one text's checkpoints before they are thinned
constexpr Position kLeastTailDistance = 32;  // about what reading the weights once more costs, in prompt tokens

std::span<const Token> part(std::span<const Token> text, Position begin, Position end) {
    return text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

KvCacheManager::KvCacheManager(KvDevice& device, DiskStore* disk, MemoryConfig config, const Clock& clock,
                               EvictionKind eviction)
    : device_(device),
      points_(device),
      disk_(disk),
      config_(std::move(config)),
      n_pool_(device.traits().n_cells),
      policy_(clock, eviction),
      tree_(config_.identity),
      cache_(tree_, device, disk, config_.host_budget, policy_),
      slots_(cache_, config_.n_slots),
      clock_(clock) {}

KvCacheManager::~KvCacheManager() = default;

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
    return check_pins(request, n_prompt);
}

// Snapshots on models with state need a checkpoint where they stand: what has none there yet must be computed again.
Position KvCacheManager::n_most(const Known& known, std::span<const Token> text, const MemoryRequest& request) {
    auto n_most = static_cast<Position>(text.size());
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
    assert(!lanes_[lane].has_value());
    PrefixMatch prefix_match;
    std::vector<Page*> known_pages;  // of the text
    if (request.restore_slot) {
        Result<PrefixMatch> restored = restore(text, request, needs_logits);
        if (!restored) return restored.error();
        prefix_match = std::move(restored).value();
        known_pages = prefix_match.pages;
    } else if (!refusal() && request.reuse.value_or(config_.reuses)) {
        Known known = walk(text);
        const PrefixMatchLimits limits{n_most(known, text, request), needs_logits, device_.traits().has_state()};
        prefix_match = match_prefix(known, tree_.root(), text, limits);
        if (known.n_matched == 0 && has_foreign_disk()) prefix_match.miss = {Miss::Reason::identity, 0};
        known_pages = std::move(known.pages);
    } else {
        prefix_match.miss = {Miss::Reason::off, 0};
    }
    // Before anything has to make way: what this one goes on from is worth more now.
    ConversationRef conversation = arrive(policy_, known_pages, text.size() / kPageSize);
    // Those that were found by name on disk alone, and are not read, count as ghosts.
    if (!known_pages.empty()) tree_.retire(*known_pages.back());
    if (Result<void> attached = attach(lane, prefix_match, text, pins_of(request)); !attached) {
        if (request.restore_slot) return attached.error();
        log_warn("a known prefix of " + std::to_string(prefix_match.n) +
                 " tokens could not be put back and is computed again: " + attached.error().text);
        prefix_match = PrefixMatch{};
        prefix_match.miss = {Miss::Reason::evicted, 0};
    }
    open(lane, prefix_match, text, request, std::move(conversation));
    PrefillStart begun = to_prefill_start(prefix_match);
    if (request.restore_slot) begun.restored = prefix_match.n;
    if (fetched != nullptr && has_read(*fetched) && begun.n > 0) begun.tier = Tier::disk;
    return begun;
}

// A computation looks at all cells up to the highest used one, also at those of texts that nobody runs: measured, a
// prompt takes twice as long beside some 10,000 of them. Where a page is copied at the speed of memory, idle texts move
// over to the host before they cost more than that, and what the lane goes on from comes back into the lowest cells.
void KvCacheManager::clear_the_way(const PrefixMatch& prefix_match, std::int32_t n_text) {
    if (!has_cells() || !device_.traits().is_host_memory || refusal()) return;
    std::int32_t n_own = 0;
    for (const Page* page : prefix_match.pages) n_own += page->is_resident() && page->n_lanes == 0 ? kPageSize : 0;
    const std::int32_t n_running = device_.traits().n_cells - device_.n_free_cells() - cache_.n_idle_cells();
    const std::int32_t n_needed = n_running + n_text;
    const std::int32_t n_foreign = cache_.n_idle_cells() - n_own;
    if (n_foreign <= kFewIdleCells + n_needed / 4) return;
    // Nothing is lost by it, or it is not done.
    if (!cache_.has_room_for_unsaved()) return;
    if (const Result<void> evicted = cache_.evict_idle(); !evicted) log_warn(evicted.error().text);
}

PrefillStart KvCacheManager::to_prefill_start(const PrefixMatch& prefix_match) const {
    PrefillStart begun;
    begun.n = prefix_match.n;
    begun.miss = prefix_match.miss;
    begun.tier = prefix_match.tier;
    if (prefix_match.has_logits) begun.logits = prefix_match.data;
    return begun;
}

// Put the prefix into the lane. Making room for what has to come from elsewhere must not take it away: its pages and
// its checkpoint wait overlapped, as what it takes from others is held by its blob.
Result<void> KvCacheManager::attach(LaneId lane, PrefixMatch& prefix_match, std::span<const Token> text,
                                    const PinnedRanges& pins) {
    if (prefix_match.n == 0) {
        clear_the_way(prefix_match, static_cast<std::int32_t>(text.size()));
        return {};
    }
    const CheckpointBlob checkpoint = prefix_match.checkpoint != nullptr ? prefix_match.checkpoint->data : nullptr;
    const Tokens checkpoint_rest = prefix_match.checkpoint != nullptr ? prefix_match.checkpoint->rest : Tokens{};
    prefix_match.data = checkpoint;
    Blob beside;
    if (prefix_match.beside != nullptr) {
        Result<Blob> rows = cache_.rows_of(*prefix_match.beside);
        if (!rows) return rows.error();
        beside = std::move(rows).value();
    }
    for (Page* page : prefix_match.pages) cache_.wait_for(*page);
    if (prefix_match.checkpoint != nullptr) cache_.wait_for(*prefix_match.checkpoint);
    clear_the_way(prefix_match, static_cast<std::int32_t>(text.size()));
    choose_seen(prefix_match, text, pins);
    std::vector<Page*> entered;
    std::vector<Page*> out;
    const auto put = [&]() -> Result<void> {
        // Those that are there first: from then on they stay.
        for (std::size_t i = 0; i < prefix_match.pages.size() && has_cells(); ++i) {
            Page* page = prefix_match.pages[i];
            if (!prefix_match.sees(i)) {
                if (!page->is_kept()) return Error{ErrorCode::no_room, "a page left the memory overlapped"};
                if (Result<void> stays = cache_.enter_out(*page); !stays) return stays;
                out.push_back(page);
            } else if (page->is_resident()) {
                cache_.enter(*page);
                entered.push_back(page);
            }
        }
        for (std::size_t i = 0; i < prefix_match.pages.size() && has_cells(); ++i) {
            Page* page = prefix_match.pages[i];
            if (!prefix_match.sees(i) || page->is_resident()) continue;
            if (Result<void> room = make_room(kPageSize); !room) return room;
            if (page->host == nullptr) return Error{ErrorCode::no_room, "a page left the memory overlapped"};
            if (Result<void> placed = cache_.place(*page); !placed) return placed;
            cache_.enter(*page);
            entered.push_back(page);
        }
        // All at once: the device waits for copies only here.
        std::vector<Cell> seen;
        for (std::size_t i = 0; i < prefix_match.pages.size() && has_cells(); ++i) {
            const std::vector<Cell>& cells = prefix_match.pages[i]->cells;
            if (prefix_match.sees(i)) seen.insert(seen.end(), cells.begin(), cells.end());
        }
        if (!seen.empty()) device_.show(lane, seen);
        if (prefix_match.n_rest > 0 && has_cells()) {
            if (Result<void> room = make_room(prefix_match.n_rest); !room) return room;
            const Bytes& rows = checkpoint != nullptr ? checkpoint->rows : *beside;
            const auto n_rows = static_cast<std::int32_t>(rows.size() / device_.traits().row_bytes);
            std::array<Cell, kPageSize> cells{};
            const Position rest = prefix_match.n - prefix_match.n_rest;
            Result<void> written = device_.write(lane, rest, part(text, rest, prefix_match.n), rows, n_rows,
                                                 std::span(cells).first(static_cast<std::size_t>(prefix_match.n_rest)));
            if (!written) return written;
        }
        if (device_.traits().has_state()) return device_.load_state(lane, checkpoint->state);
        return {};
    };
    Result<void> done = put();
    if (checkpoint != nullptr) {
        prefix_match.checkpoint = tree_.find_checkpoint(
            prefix_match.pages.empty() ? tree_.root() : *prefix_match.pages.back(), checkpoint_rest);
    }
    if (!done) {
        for (Page* page : entered) cache_.leave(*page, {});
        for (Page* page : out) cache_.leave_out(*page, {});
        device_.forget(lane);
    }
    if (prefix_match.checkpoint != nullptr) cache_.stop_waiting_for(*prefix_match.checkpoint);
    for (Page* page : prefix_match.pages) cache_.stop_waiting_for(*page);
    return done;
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
    if (!has_cells()) {
        for (Page* page : prefix_match.pages) cache_.enter(*page);
    }
    lane.n_prompt = static_cast<Position>(text.size());
    lane.snapshots = request.snapshots;
    lane.pins = pins_of(request);
    lane.conversation = std::move(conversation);
    policy_.on_run(*lane.conversation);
    if (device_.traits().has_state()) {
        lane.checkpoints = plan_checkpoints(prefix_match.n, lane.n_prompt, request.marks);
        // An answer's end most often has its mark a token or two behind the checkpoint that was taken there: another
        // checkpoint would cost a computation of its own and save those few tokens.
        if (prefix_match.n > 0) {
            std::erase_if(lane.checkpoints, [n = prefix_match.n](const PlannedCheckpoint& checkpoint) {
                return checkpoint.position < n + kLeastTailDistance;
            });
        }
        for (const SnapshotPoint& point : request.snapshots) {
            if (point.position > prefix_match.n) lane.checkpoints.push_back({point.position, CheckpointKind::mark});
        }
        std::sort(lane.checkpoints.begin(), lane.checkpoints.end(),
                  [](const PlannedCheckpoint& a, const PlannedCheckpoint& b) { return a.position < b.position; });
    }
    lanes_[id] = std::move(lane);
    yieldable_.reset();
    watch_residency(id, text, prefix_match.n);
}

Position KvCacheManager::n_until_cut(LaneId id, Position n_computed) const {
    const Lane& lane = *lanes_.at(id);
    Position cut = next_choice(lane, n_computed);
    for (const PlannedCheckpoint& checkpoint : lane.checkpoints) {
        if (checkpoint.position > n_computed) cut = std::min(cut, checkpoint.position);
    }
    return cut == std::numeric_limits<Position>::max() ? cut : cut - n_computed;
}

std::vector<SnapshotOutcome> KvCacheManager::advance(LaneId id, std::span<const Token> text, Position n_computed,
                                                     std::span<const float> logits) {
    Lane& lane = at(id);
    std::vector<SnapshotOutcome> outcomes;
    if (refusal()) return outcomes;
    while (lane.page->end() + kPageSize <= n_computed && !lane.is_lost) {
        lane.is_lost = !seal(id, lane, text);
        yieldable_.reset();
    }

    while (!lane.checkpoints.empty() && lane.checkpoints.front().position <= n_computed) {
        const PlannedCheckpoint planned = lane.checkpoints.front();
        lane.checkpoints.erase(lane.checkpoints.begin());
        if (planned.position == n_computed) keep_checkpoint_here(id, text, n_computed, planned.kind, {});
    }
    if (n_computed == lane.n_prompt && !logits.empty()) {
        keep_checkpoint_here(id, text, n_computed, CheckpointKind::prompt_end, logits);
    }
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
    watch_residency(id, text, n_computed);
    if (n_computed >= lane.n_prompt - 1) save_late_checkpoint(lane);
    return outcomes;
}

// Name the lane's next full page. Where the tree knows it already, the lane goes on with the known one's cells (or the
// known one gets the lane's).
bool KvCacheManager::seal(LaneId id, Lane& lane, std::span<const Token> text) {
    const Position begin = lane.page->end();
    const auto tokens = text.subspan(static_cast<std::size_t>(begin)).first<kPageSize>();
    Page* page = tree_.child(*lane.page, tokens);
    if (page == nullptr) page = &tree_.add(*lane.page, tokens);
    if (has_cells()) {
        std::array<Cell, kPageSize> cells{};
        if (const Result<void> found = device_.find(id, begin, cells); !found) {
            log_error("a lane's cells were not found and its text is not kept: " + found.error().text);
            tree_.retire(*page);
            return false;
        }
        if (page->is_resident()) {
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

Page& KvCacheManager::page_at(Page& last, Position position) {
    return ancestor(last, std::min(last.index, position / kPageSize - 1));
}

// The checkpoint at `position` <= n_computed, where the lane can still give it: rows of any position, state only of the
// last.
Result<Checkpoint*> KvCacheManager::take_checkpoint(LaneId id, Page& page, std::span<const Token> text,
                                                    Position n_computed, Position position, CheckpointKind kind,
                                                    std::span<const float> logits) {
    const auto rest = part(text, page.end(), position);
    auto data = std::make_shared<CheckpointData>();
    try {
        if (has_cells() && !rest.empty()) {
            std::array<Cell, kPageSize> buffer{};
            const auto cells = std::span(buffer).first(rest.size());
            if (Result<void> found = device_.find(id, page.end(), cells); !found) return found.error();
            data->rows.resize(rest.size() * device_.traits().row_bytes);
            if (Result<void> read = device_.read(cells, data->rows, data); !read) return read.error();
        }
        if (device_.traits().has_state()) {
            assert(position == n_computed);
            if (Result<void> saved = device_.save_state(id, data->state, data); !saved) return saved.error();
        }
        data->logits.assign(logits.begin(), logits.end());
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "no memory for a checkpoint"};
    }
    // A mark is where the next turn's text departs from this one, most often, and what matters is not known before the
    // prompt's end: the newest mark's file waits for it.
    Lane& lane = at(id);
    const bool waits = disk_ != nullptr && kind == CheckpointKind::mark && awaits_choice(lane, n_computed);
    Checkpoint* checkpoint = cache_.keep_checkpoint(page, rest, kind, std::move(data), lane.conversation, !waits);
    if (checkpoint == nullptr) {
        return Error{ErrorCode::no_room,
                     "--host-cache has no room for the state at position " + std::to_string(position)};
    }
    if (waits) {
        save_late_checkpoint(lane);
        lane.late_checkpoint = LateCheckpoint{&page, checkpoint->rest, checkpoint->data};
    }
    return checkpoint;
}

// A checkpoint is a help for later, never a reason to fail now.
void KvCacheManager::keep_checkpoint_here(LaneId id, std::span<const Token> text, Position n_computed,
                                          CheckpointKind kind, std::span<const float> logits) {
    Lane& lane = at(id);
    if (lane.is_lost || n_computed == 0) return;
    // On pure attention the pages say it all, but for the rows behind them and the logits.
    if (!device_.traits().has_state() && n_computed == lane.page->end() && logits.empty()) return;
    // What was reused may end where its checkpoint still stands: the same state need not be copied again.
    const Checkpoint* known = tree_.find_checkpoint(*lane.page, part(text, lane.page->end(), n_computed));
    if (known != nullptr && (logits.empty() || !known->data->logits.empty())) return;
    if (const Result<Checkpoint*> checkpoint =
            take_checkpoint(id, *lane.page, text, n_computed, n_computed, kind, logits);
        !checkpoint) {
        if (!has_warned_of_checkpoints_)
            log_warn("a checkpoint was not kept: " + checkpoint.error().text + " (said once)");
        has_warned_of_checkpoints_ = true;
        return;
    }
    thin(*lane.page, n_computed);
}

// Along the text that ends at `last`, give up the checkpoints that stand too close for their distance from the end.
void KvCacheManager::thin(Page& last, Position end) {
    std::vector<Checkpoint*> checkpoints;
    std::vector<ExistingCheckpoint> standing;
    const std::vector<Page*> path = path_to(last);
    const auto collect = [&](Page& page) {
        // Where texts branch, more than one will come back.
        const bool is_fork = page.children.size() > 1;
        for (Checkpoint& checkpoint : page.checkpoints) {
            if (checkpoint.position() > end) continue;
            checkpoints.push_back(&checkpoint);
            standing.push_back({checkpoint.position(), checkpoint.kind, checkpoint.n_pins > 0 || is_fork});
        }
    };
    collect(tree_.root());
    for (Page* page : path) collect(*page);
    // While there is room for them all may stand: a text may be edited anywhere.
    std::size_t n_bytes = 0;
    for (const Checkpoint* checkpoint : checkpoints) n_bytes += checkpoint->data->n_bytes();
    if (n_bytes <= cache_.host_budget() / kCheckpointsShare) return;
    if (cache_.usage().host_bytes <= cache_.host_budget() / 2) return;
    for (const std::size_t i : thin_tails(standing, end)) cache_.drop(*checkpoints[i]);
}

void KvCacheManager::detach(LaneId id) {
    Lane& lane = at(id);
    save_late_checkpoint(lane);
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
    lanes_[id].reset();
    yieldable_.reset();
}

void KvCacheManager::end(LaneId id, std::uint64_t owner, std::span<const Token> text, Position n_computed,
                         std::span<const float> logits, bool is_valid) {
    Lane& lane = at(id);
    if (is_valid && !refusal() && !lane.is_lost && n_computed > 0) {
        // The logits of an answer's end are of use only where they cannot be computed again from the position before.
        const auto kept = device_.traits().has_state() ? logits : std::span<const float>{};
        keep_checkpoint_here(id, text, n_computed,
                             n_computed > lane.n_prompt ? CheckpointKind::answer_end : CheckpointKind::prompt_end,
                             kept);
        if (!lane.page->is_root()) lane.page->ended = lane.conversation;
        remember(owner, *lane.page, part(text, lane.page->end(), n_computed));
        touch_disk(*lane.page);
    }
    detach(id);
}

void KvCacheManager::clear(bool with_disk) {
    for (const Ended& ended : ended_) forget_ended(ended);
    ended_.clear();
    cache_.clear();
    if (with_disk && disk_ != nullptr) disk_->clear();
}

MemoryStatus KvCacheManager::status() const {
    MemoryStatus status;
    status.cache = cache_.usage();
    status.n_tree_pages = tree_.n_pages();
    status.n_slots_used = slots_.n_used();
    status.page_bytes = cache_.page_bytes();
    status.tail_bytes = device_.traits().state_bytes;
    if (config_.residency) {
        status.residency = residency_totals_;
        status.residency->lanes = pages_of_lanes();
    }
    return status;
}

std::optional<std::string> KvCacheManager::check_integrity() const {
    if (std::optional<std::string> wrong = cache_.check_integrity()) return wrong;
    if (std::optional<std::string> wrong = check_lanes()) return wrong;
    return slots_.check_integrity();
}

}  // namespace luce::memory
