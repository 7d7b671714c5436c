// The part of TextMemory that runs lanes: begin, advance, end.
#include "memory/text_memory.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <new>

#include "base/log.h"
#include "memory/disk_store.h"
#include "memory/eviction_arrival.h"
#include "memory/page_scorer.h"

namespace luce::memory {
namespace {

constexpr std::int32_t kFewIdleCells = 256;  // libllama looks at cells by as many
constexpr std::size_t kTailsShare = 16;      // of the host's bytes, for one text's tails before they are thinned
constexpr Position kLeastTailDistance = 32;  // about what reading the weights once more costs, in prompt tokens

std::span<const Token> part(std::span<const Token> text, Position begin, Position end) {
    return text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

TextMemory::TextMemory(KvDevice& device, DiskStore* disk, MemoryConfig config, const Clock& clock,
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

TextMemory::~TextMemory() = default;

Result<void> TextMemory::check(const MemoryRequest& request, Position n_prompt) const {
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

// Snapshots on models with state need a tail where they stand: what has none there yet must be computed again.
Position TextMemory::n_most(const Known& known, std::span<const Token> text, const MemoryRequest& request) {
    auto n_most = static_cast<Position>(text.size());
    if (!device_.traits().has_state()) return n_most;
    for (const SnapshotPoint& point : request.snapshots) {
        if (!beginning_at(known.pages, tree_.root(), point.position, text, true)) {
            n_most = std::min(n_most, point.position);
        }
    }
    return n_most;
}

Result<Begun> TextMemory::begin(LaneId lane, std::span<const Token> text, const MemoryRequest& request,
                                bool needs_logits, const Fetch* fetched) {
    assert(!lanes_[lane].has_value());
    Beginning beginning;
    std::vector<Page*> known_pages;  // of the text
    if (request.restore_slot) {
        Result<Beginning> restored = restore(text, request, needs_logits);
        if (!restored) return restored.error();
        beginning = std::move(restored).value();
        known_pages = beginning.pages;
    } else if (!refusal() && request.reuse.value_or(config_.reuses)) {
        Known known = walk(text);
        const BeginningLimits limits{n_most(known, text, request), needs_logits, device_.traits().has_state()};
        beginning = choose_beginning(known, tree_.root(), text, limits);
        if (known.n_matched == 0 && has_foreign_disk()) beginning.miss = {Miss::Reason::identity, 0};
        known_pages = std::move(known.pages);
    } else {
        beginning.miss = {Miss::Reason::off, 0};
    }
    // Before anything has to make way: what this one goes on from is worth more now.
    ConversationRef conversation = arrive(policy_, known_pages, text.size() / kPageSize);
    // Those that were found by name on disk alone, and are not read, count as ghosts.
    if (!known_pages.empty()) tree_.retire(*known_pages.back());
    if (Result<void> attached = attach(lane, beginning, text, pins_of(request)); !attached) {
        if (request.restore_slot) return attached.error();
        log_warn("a known beginning of " + std::to_string(beginning.n) +
                 " tokens could not be put back and is computed again: " + attached.error().text);
        beginning = Beginning{};
        beginning.miss = {Miss::Reason::evicted, 0};
    }
    open(lane, beginning, text, request, std::move(conversation));
    Begun begun = to_begun(beginning);
    if (request.restore_slot) begun.restored = beginning.n;
    if (fetched != nullptr && has_read(*fetched) && begun.n > 0) begun.tier = Tier::disk;
    return begun;
}

// A computation looks at all cells up to the highest used one, also at those of texts that nobody runs: measured, a
// prompt takes twice as long beside some 10,000 of them. Where a page is copied at the speed of memory, idle texts move
// over to the host before they cost more than that, and what the lane goes on from comes back into the lowest cells.
void TextMemory::clear_the_way(const Beginning& beginning, std::int32_t n_text) {
    if (!has_cells() || !device_.traits().is_host_memory || refusal()) return;
    std::int32_t n_own = 0;
    for (const Page* page : beginning.pages) n_own += page->is_resident() && page->n_lanes == 0 ? kPageSize : 0;
    const std::int32_t n_running = device_.traits().n_cells - device_.n_free_cells() - cache_.n_idle_cells();
    const std::int32_t n_needed = n_running + n_text;
    const std::int32_t n_foreign = cache_.n_idle_cells() - n_own;
    if (n_foreign <= kFewIdleCells + n_needed / 4) return;
    // Nothing is lost by it, or it is not done.
    if (!cache_.has_room_for_unsaved()) return;
    if (const Result<void> evicted = cache_.evict_idle(); !evicted) log_warn(evicted.error().text);
}

Begun TextMemory::to_begun(const Beginning& beginning) const {
    Begun begun;
    begun.n = beginning.n;
    begun.miss = beginning.miss;
    begun.tier = beginning.tier;
    if (beginning.has_logits) begun.logits = beginning.data;
    return begun;
}

// Put the beginning into the lane. Making room for what has to come from elsewhere must not take it away: its pages and
// its tail wait meanwhile, as what it takes from others is held by its blob.
Result<void> TextMemory::attach(LaneId lane, Beginning& beginning, std::span<const Token> text, const Pins& pins) {
    if (beginning.n == 0) {
        clear_the_way(beginning, static_cast<std::int32_t>(text.size()));
        return {};
    }
    const TailBlob tail = beginning.tail != nullptr ? beginning.tail->data : nullptr;
    const Tokens tail_rest = beginning.tail != nullptr ? beginning.tail->rest : Tokens{};
    beginning.data = tail;
    Blob beside;
    if (beginning.beside != nullptr) {
        Result<Blob> rows = cache_.rows_of(*beginning.beside);
        if (!rows) return rows.error();
        beside = std::move(rows).value();
    }
    for (Page* page : beginning.pages) cache_.wait_for(*page);
    if (beginning.tail != nullptr) cache_.wait_for(*beginning.tail);
    clear_the_way(beginning, static_cast<std::int32_t>(text.size()));
    choose_seen(beginning, text, pins);
    std::vector<Page*> entered;
    std::vector<Page*> out;
    const auto put = [&]() -> Result<void> {
        // Those that are there first: from then on they stay.
        for (std::size_t i = 0; i < beginning.pages.size() && has_cells(); ++i) {
            Page* page = beginning.pages[i];
            if (!beginning.sees(i)) {
                if (!page->is_kept()) return Error{ErrorCode::no_room, "a page left the memory meanwhile"};
                if (Result<void> stays = cache_.enter_out(*page); !stays) return stays;
                out.push_back(page);
            } else if (page->is_resident()) {
                cache_.enter(*page);
                entered.push_back(page);
            }
        }
        for (std::size_t i = 0; i < beginning.pages.size() && has_cells(); ++i) {
            Page* page = beginning.pages[i];
            if (!beginning.sees(i) || page->is_resident()) continue;
            if (Result<void> room = make_room(kPageSize); !room) return room;
            if (page->host == nullptr) return Error{ErrorCode::no_room, "a page left the memory meanwhile"};
            if (Result<void> placed = cache_.place(*page); !placed) return placed;
            cache_.enter(*page);
            entered.push_back(page);
        }
        // All at once: the device waits for copies only here.
        std::vector<Cell> seen;
        for (std::size_t i = 0; i < beginning.pages.size() && has_cells(); ++i) {
            const std::vector<Cell>& cells = beginning.pages[i]->cells;
            if (beginning.sees(i)) seen.insert(seen.end(), cells.begin(), cells.end());
        }
        if (!seen.empty()) device_.show(lane, seen);
        if (beginning.n_rest > 0 && has_cells()) {
            if (Result<void> room = make_room(beginning.n_rest); !room) return room;
            const Bytes& rows = tail != nullptr ? tail->rows : *beside;
            const auto n_rows = static_cast<std::int32_t>(rows.size() / device_.traits().row_bytes);
            std::array<Cell, kPageSize> cells{};
            const Position rest = beginning.n - beginning.n_rest;
            Result<void> written = device_.write(lane, rest, part(text, rest, beginning.n), rows, n_rows,
                                                 std::span(cells).first(static_cast<std::size_t>(beginning.n_rest)));
            if (!written) return written;
        }
        if (device_.traits().has_state()) return device_.load_state(lane, tail->state);
        return {};
    };
    Result<void> done = put();
    if (tail != nullptr) {
        beginning.tail = tree_.find_tail(beginning.pages.empty() ? tree_.root() : *beginning.pages.back(), tail_rest);
    }
    if (!done) {
        for (Page* page : entered) cache_.leave(*page, {});
        for (Page* page : out) cache_.leave_out(*page, {});
        device_.forget(lane);
    }
    if (beginning.tail != nullptr) cache_.stop_waiting_for(*beginning.tail);
    for (Page* page : beginning.pages) cache_.stop_waiting_for(*page);
    return done;
}

void TextMemory::open(LaneId id, const Beginning& beginning, std::span<const Token> text, const MemoryRequest& request,
                      ConversationRef conversation) {
    Lane lane;
    lane.page = beginning.pages.empty() ? &tree_.root() : beginning.pages.back();
    cache_.begin_tails(*lane.page);
    for (std::size_t i = 0; i < beginning.pages.size(); ++i) {
        lane.pages.push_back({beginning.pages[i], beginning.sees(i)});
        if (!beginning.sees(i)) ++lane.n_out;
    }
    if (!has_cells()) {
        for (Page* page : beginning.pages) cache_.enter(*page);
    }
    lane.n_prompt = static_cast<Position>(text.size());
    lane.snapshots = request.snapshots;
    lane.pins = pins_of(request);
    lane.conversation = std::move(conversation);
    policy_.on_run(*lane.conversation);
    if (device_.traits().has_state()) {
        lane.tails = plan_tails(beginning.n, lane.n_prompt, request.marks);
        // An answer's end most often has its mark a token or two behind the tail that was taken there: another tail
        // would cost a computation of its own and save those few tokens.
        if (beginning.n > 0) {
            std::erase_if(lane.tails, [n = beginning.n](const PlannedTail& tail) {
                return tail.position < n + kLeastTailDistance;
            });
        }
        for (const SnapshotPoint& point : request.snapshots) {
            if (point.position > beginning.n) lane.tails.push_back({point.position, TailKind::mark});
        }
        std::sort(lane.tails.begin(), lane.tails.end(),
                  [](const PlannedTail& a, const PlannedTail& b) { return a.position < b.position; });
    }
    lanes_[id] = std::move(lane);
    yieldable_.reset();
    watch_residency(id, text, beginning.n);
}

Position TextMemory::n_until_cut(LaneId id, Position n_computed) const {
    const Lane& lane = *lanes_.at(id);
    Position cut = next_choice(lane, n_computed);
    for (const PlannedTail& tail : lane.tails) {
        if (tail.position > n_computed) cut = std::min(cut, tail.position);
    }
    return cut == std::numeric_limits<Position>::max() ? cut : cut - n_computed;
}

std::vector<SnapshotOutcome> TextMemory::advance(LaneId id, std::span<const Token> text, Position n_computed,
                                                 std::span<const float> logits) {
    Lane& lane = at(id);
    std::vector<SnapshotOutcome> outcomes;
    if (refusal()) return outcomes;
    while (lane.page->end() + kPageSize <= n_computed && !lane.is_lost) {
        lane.is_lost = !seal(id, lane, text);
        yieldable_.reset();
    }

    while (!lane.tails.empty() && lane.tails.front().position <= n_computed) {
        const PlannedTail planned = lane.tails.front();
        lane.tails.erase(lane.tails.begin());
        if (planned.position == n_computed) keep_tail_here(id, text, n_computed, planned.kind, {});
    }
    if (n_computed == lane.n_prompt && !logits.empty()) {
        keep_tail_here(id, text, n_computed, TailKind::prompt_end, logits);
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
    if (n_computed >= lane.n_prompt - 1) save_late_tail(lane);
    return outcomes;
}

// Name the lane's next full page. Where the tree knows it already, the lane goes on with the known one's cells (or the
// known one gets the lane's).
bool TextMemory::seal(LaneId id, Lane& lane, std::span<const Token> text) {
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
    cache_.follow_tails(*page);
    lane.pages.push_back({page, true});
    return true;
}

Page& TextMemory::page_at(Page& last, Position position) {
    return ancestor(last, std::min(last.index, position / kPageSize - 1));
}

// The tail at `position` <= n_computed, where the lane can still give it: rows of any position, state only of the last.
Result<Tail*> TextMemory::take_tail(LaneId id, Page& page, std::span<const Token> text, Position n_computed,
                                    Position position, TailKind kind, std::span<const float> logits) {
    const auto rest = part(text, page.end(), position);
    auto data = std::make_shared<TailData>();
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
        return Error{ErrorCode::out_of_memory, "no memory for a tail"};
    }
    // A mark is where the next turn's text departs from this one, most often, and what matters is not known before the
    // prompt's end: the newest mark's file waits for it.
    Lane& lane = at(id);
    const bool waits = disk_ != nullptr && kind == TailKind::mark && awaits_choice(lane, n_computed);
    Tail* tail = cache_.keep_tail(page, rest, kind, std::move(data), lane.conversation, !waits);
    if (tail == nullptr) {
        return Error{ErrorCode::no_room,
                     "--host-cache has no room for the state at position " + std::to_string(position)};
    }
    if (waits) {
        save_late_tail(lane);
        lane.late_tail = LateTail{&page, tail->rest, tail->data};
    }
    return tail;
}

// A tail is a help for later, never a reason to fail now.
void TextMemory::keep_tail_here(LaneId id, std::span<const Token> text, Position n_computed, TailKind kind,
                                std::span<const float> logits) {
    Lane& lane = at(id);
    if (lane.is_lost || n_computed == 0) return;
    // On pure attention the pages say it all, but for the rows behind them and the logits.
    if (!device_.traits().has_state() && n_computed == lane.page->end() && logits.empty()) return;
    // What was reused may end where its tail still stands: the same state need not be copied again.
    const Tail* known = tree_.find_tail(*lane.page, part(text, lane.page->end(), n_computed));
    if (known != nullptr && (logits.empty() || !known->data->logits.empty())) return;
    if (const Result<Tail*> tail = take_tail(id, *lane.page, text, n_computed, n_computed, kind, logits); !tail) {
        if (!has_warned_of_tails_) log_warn("a tail was not kept: " + tail.error().text + " (said once)");
        has_warned_of_tails_ = true;
        return;
    }
    thin(*lane.page, n_computed);
}

// Along the text that ends at `last`, give up the tails that stand too close for their distance from the end.
void TextMemory::thin(Page& last, Position end) {
    std::vector<Tail*> tails;
    std::vector<StandingTail> standing;
    const std::vector<Page*> path = path_to(last);
    const auto collect = [&](Page& page) {
        // Where texts branch, more than one will come back.
        const bool is_fork = page.children.size() > 1;
        for (Tail& tail : page.tails) {
            if (tail.position() > end) continue;
            tails.push_back(&tail);
            standing.push_back({tail.position(), tail.kind, tail.n_pins > 0 || is_fork});
        }
    };
    collect(tree_.root());
    for (Page* page : path) collect(*page);
    // While there is room for them all may stand: a text may be edited anywhere.
    std::size_t n_bytes = 0;
    for (const Tail* tail : tails) n_bytes += tail->data->n_bytes();
    if (n_bytes <= cache_.host_budget() / kTailsShare) return;
    if (cache_.usage().host_bytes <= cache_.host_budget() / 2) return;
    for (const std::size_t i : thin_tails(standing, end)) cache_.drop(*tails[i]);
}

void TextMemory::detach(LaneId id) {
    Lane& lane = at(id);
    save_late_tail(lane);
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

void TextMemory::end(LaneId id, std::uint64_t owner, std::span<const Token> text, Position n_computed,
                     std::span<const float> logits, bool is_valid) {
    Lane& lane = at(id);
    if (is_valid && !refusal() && !lane.is_lost && n_computed > 0) {
        // The logits of an answer's end are of use only where they cannot be computed again from the position before.
        const auto kept = device_.traits().has_state() ? logits : std::span<const float>{};
        keep_tail_here(id, text, n_computed, n_computed > lane.n_prompt ? TailKind::answer_end : TailKind::prompt_end,
                       kept);
        if (!lane.page->is_root()) lane.page->ended = lane.conversation;
        remember(owner, *lane.page, part(text, lane.page->end(), n_computed));
        touch_disk(*lane.page);
    }
    detach(id);
}

void TextMemory::clear(bool with_disk) {
    for (const Ended& ended : ended_) forget_ended(ended);
    ended_.clear();
    cache_.clear();
    if (with_disk && disk_ != nullptr) disk_->clear();
}

MemoryStatus TextMemory::status() const {
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

std::optional<std::string> TextMemory::check_integrity() const {
    if (std::optional<std::string> wrong = cache_.check_integrity()) return wrong;
    if (std::optional<std::string> wrong = check_lanes()) return wrong;
    return slots_.check_integrity();
}

}  // namespace luce::memory
