// PageCache: which pages and checkpoints lie where, within the pool of cells and the bytes of host memory, and what has
// to leave when room is needed. Owns the placement; the tree owns the pages. Knows no requests and no slots, only how
// many of them need a page (n_lanes, n_pins).
//
// A computation looks at all cells up to the highest used one, so pages that no lane sees are set aside before one that
// does not need them (kv_device.h): in the pool, but high up in it and out of the computations' sight.
//
// The pool gives up pages that no lane uses, those first whose texts end there; a page without a copy in the host is
// copied first, if it is worth what has to make way for it there. So that this seldom happens, pages are copied ahead:
// when nobody computes, and beside running lanes when room gets short or a disk wants them. The host gives up what is
// neither in the pool nor needed by a page behind it. What is pinned stays in one of the two. Which of them goes first,
// and what is worth more than what, is the policy's choice (eviction_policy.h); where a model has state, pages without
// a checkpoint at or behind them go before all others, since no text can begin with them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "memory/eviction/eviction_queue.h"
#include "memory/manager/kv_device.h"
#include "memory/pages/idle_pages.h"
#include "memory/pages/prefix_tree.h"

namespace luce::memory {

class DiskStore;

struct CacheUsage {
    std::int64_t n_resident = 0;  // pages
    std::int64_t n_host = 0;      // pages that have a host copy
    std::int64_t n_host_checkpoints = 0;
    std::size_t host_bytes = 0;
    std::size_t pinned_bytes = 0;
    std::size_t keys_bytes = 0;   // of pages' keys, beside the host's budget
    std::uint64_t n_evicted = 0;  // pages that left the pool
    std::uint64_t n_dropped = 0;  // pages that left all memory
};

class PageCache {
public:
    // All must outlive the cache. `disk` may be null.
    // lanes_give_up_pages: a page may leave the pool while the lane runs whose text it is.
    PageCache(PrefixTree& tree, KvDevice& device, DiskStore* disk, std::size_t host_budget, EvictionPolicy& policy,
              bool lanes_give_up_pages = false);

    std::size_t page_bytes() const { return page_bytes_; }
    const CacheUsage& usage() const { return usage_; }
    std::size_t host_budget() const { return host_budget_; }

    // Cells that are free or can be made free.
    std::int32_t n_available_cells() const;

    // Have at least n free cells. Errors: no_room (as many as possible were freed).
    Result<void> make_room(std::int32_t n_cells);

    // The same as long as nothing is lost by it: what leaves is elsewhere, or there is room for it. Returns whether
    // there are as many.
    bool make_room_unharmed(std::int32_t n_cells);

    // What no lane sees moves out of the cells from `first` on, or leaves as far as there is no room below and nothing
    // is lost by it. Returns whether none of it is there any more. REQUIRES: no lane sees one of them.
    bool clear_from(Cell first);

    // A lane's own cells become the page's. REQUIRES: not resident, or (adopt_and_enter) set aside.
    void adopt(Page& page, std::span<const Cell> cells);
    void adopt_and_enter(Page& page, std::span<const Cell> cells);

    // A lane begins or ceases to use the page; it and its checkpoints are `owner`'s then, if that is not empty.
    // REQUIRES: resident.
    void enter(Page& page);
    void leave(Page& page, const ConversationRef& owner);

    // A running lane's text has the page, but the lane does not see it: then it stays in host or pool, pinned. Of a
    // page that it sees (which leaves the pool if nobody else does); of one that it does not see yet; the end of it, by
    // seeing it again, and by the lane's end. Errors: no_room, internal (nothing has changed). A page that is put out
    // comes back from where it then lies.
    Result<void> offload(Page& page, LaneId lane);
    Result<void> enter_out(Page& page);
    Result<void> load_back(Page& page, LaneId lane);
    void leave_out(Page& page, const ConversationRef& owner);

    // What a scorer made of the page's rows; it goes with them.
    void set_keys(Page& page, PageKeys keys);

    // A request that has not begun will use the page: it stays in the host, if it is there, until that ends.
    void wait_for(Page& page);
    void stop_waiting_for(Page& page);
    void wait_for(Checkpoint& checkpoint);
    void stop_waiting_for(Checkpoint& checkpoint);

    bool is_on_disk(const Page& page) const;

    // Put a page from the host into the pool, if it is not there; its bytes may still be coming. It can be shown, but
    // nobody sees it, so it may have to leave again at once. Errors: no_room, internal.
    Result<void> place(Page& page);

    // Up to n pages that no lane sees are set aside, the lowest first.
    void set_idle_aside(std::size_t n_pages);
    std::size_t n_low_idle_pages() const { return idle_.n_low(); }
    std::size_t n_aside_pages() const { return idle_.n_aside(); }

    // If the next n rows would lie above what is set aside: as many of that move into higher cells.
    void clear_lowest_cells(std::int32_t n_cells);

    // Pages that are set aside can be shown again, and lie in the lowest cells as far as there is room. REQUIRES: lanes
    // use them (enter()), who do not see them yet.
    void bring_back(std::span<Page* const> pages);

    // Keep it in pool or host until unpinned. Errors: no_room (all that is pinned must fit the host's budget).
    Result<void> pin(Page& page);
    void unpin(Page& page);
    Result<void> pin(Checkpoint& checkpoint);
    void unpin(Checkpoint& checkpoint);

    // Rows and checkpoints that came in (from disk, from a file, from a lane). False or null: the host has no room that
    // they are worth. A checkpoint that is there already is replaced. They are saved to disk as well, the checkpoint if
    // `saves`.
    bool keep(Page& page, Blob rows);
    Checkpoint* keep_checkpoint(Page& page, std::span<const Token> rest, CheckpointKind kind, CheckpointBlob data,
                                const ConversationRef& owner, bool saves = true);
    void drop(Checkpoint& checkpoint);

    // A lane's text goes on behind this page, and then page by page: where its next checkpoint stands is known the
    // sooner.
    void begin_checkpoints(const Page& page) { checkpoints_.begin(page); }
    void follow_checkpoints(const Page& page) { checkpoints_.follow(page); }

    // A checkpoint's file, with the scores that the pages before it have now. Where the disk has no room for it among
    // its writes, it is tried again for as long as the checkpoint stands.
    void save_checkpoint(Page& page, std::span<const Token> rest, CheckpointBlob data);

    // A page's rows, copied out of the pool where they lie only there. REQUIRES: is_kept(). Errors: internal,
    // out_of_memory.
    Result<Blob> rows_of(Page& page);

    // Whether something is to be copied ahead of need: checkpoints that the disk had no room for; pages out of the
    // pool: those that the disk is owed, from the beginnings of texts on; then, as long as the host has room, those
    // that are worth least and so will leave first. With lanes running (not is_idle) these only if room is short.
    bool has_to_copy(bool is_idle) const;

    // Copy one of them: its bytes. 0: none, or as much is under way as should be, or a block for it is being got.
    std::size_t copy_next(bool is_idle);

    // Hand over what the disk is owed, as far as it has room among its writes: so many files.
    std::size_t copy_owed();

    // This one goes to disk now, and to the host if there is room. REQUIRES: is_kept().
    void copy_to_disk(Page& page);

    // Rises whenever a lane begins or ceases to see a page.
    std::uint64_t n_lane_changes() const { return n_lane_changes_; }

    // Cells of pages that no lane uses.
    std::int32_t n_idle_cells() const { return static_cast<std::int32_t>(n_idle_) * kPageSize; }

    // Whether the host has room for all that is worth a copy and has none, without giving anything up.
    bool has_room_for_uncopied() const { return usage_.host_bytes + uncopied_.size() * page_bytes_ <= host_budget_; }

    // All pages that no lane uses leave the pool, as they do in make_room(). Errors: no_room, internal.
    Result<void> evict_idle();

    // All pages leave the pool: into the host if it has room for them, pinned ones for sure. REQUIRES: no lane runs.
    Result<void> empty_pool();

    // The page and its checkpoints leave memory and disk. False: something needs it, and it stays.
    bool forget(Page& page);

    // Drop all that is neither pinned nor in use.
    void clear();

    std::optional<std::string> check_integrity() const;

private:
    // What an allocation in the host may evict: entries worth less; any that nobody waits for; or awaited ones as well.
    enum class Claim : std::uint8_t { priority, awaited, pinned };

    Result<void> evict(Page& page);
    void note_place(Page& page);
    bool are_idle_pages_right() const;
    void move(std::span<Page* const> pages, bool are_aside);
    void set_cells(Page& page, std::span<const Cell> cells, bool are_held = false);
    void set_host(Page& page, Blob rows);
    void own(Page& page, const ConversationRef& owner);
    void after_change(Page& page, bool was_kept);
    void update(Page& page);
    void update(Checkpoint& checkpoint);
    bool leaves_pool(const Page& page) const;
    bool leaves_host(const Page& page) const;
    bool needs_copy(const Page& page) const;
    bool is_hopeless(const Page& page) const;
    Conversation& conversation_of(const Page& page) const;
    double priority_per_byte(const Page& page, double now_s) const;
    static bool is_awaited(const Page& page);
    static Claim claim_of(const Page& page);
    bool make_host_room(std::size_t n_bytes, double priority_per_byte, Claim claim);
    void drop_host(Page& page);
    void after_drop(Page& page);
    void save_to_disk(Page& page, Blob rows);
    bool has_host_room() const { return usage_.host_bytes + page_bytes_ <= host_budget_; }
    bool is_room_short() const;
    bool is_safe(const Page& page) const;
    Page& first_to_leave();
    Page* take_owed();
    bool can_save_checkpoint() const;
    std::size_t save_next_checkpoint();
    bool copy_out(Page& page);

    PrefixTree& tree_;
    KvDevice& device_;
    DiskStore* disk_;
    std::size_t host_budget_;
    std::size_t page_bytes_;
    CacheUsage usage_;
    EvictionPolicy& policy_;
    bool needs_checkpoints_;  // pages are of use only before a checkpoint
    bool lanes_give_up_pages_;
    PageQueue in_pool_;                              // resident, unused, no resident child
    PageQueue in_host_;                              // host copy only, unpinned, no kept child
    CheckpointQueue checkpoints_;                    // host copy, unpinned
    std::set<Page*> awaited_;                        // host copy only, unpinned, but a request or a write waits
    std::set<Page*> doubles_;                        // in pool and host: their host copy is the first to go
    PageQueue uncopied_;                             // could leave the pool, but would have to be copied first
    std::set<std::pair<std::int32_t, Page*>> owed_;  // resident, for the disk, if there is one; by index
    std::vector<Checkpoint*> unsaved_;               // that the disk had no room for; the newest last
    IdlePages idle_;
    std::int64_t n_idle_ = 0;  // resident pages that no lane uses
    std::uint64_t n_lane_changes_ = 0;
};

}  // namespace luce::memory
