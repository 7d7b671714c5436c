#include "memory/pages/page_cache.h"

#include <algorithm>
#include <cassert>
#include <new>

#include "base/log.h"
#include "memory/tiers/disk_store.h"

namespace luce::memory {
namespace {

constexpr std::size_t kPageCells = kPageSize;

}  // namespace

PageCache::PageCache(PrefixTree& tree, KvDevice& device, DiskStore* disk, std::size_t host_budget,
                     EvictionPolicy& policy, bool lanes_give_up_pages)
    : tree_(tree),
      device_(device),
      disk_(disk),
      host_budget_(host_budget),
      page_bytes_(device.traits().row_bytes * kPageCells),
      policy_(policy),
      needs_checkpoints_(device.traits().has_state() && policy.learns()),
      lanes_give_up_pages_(lanes_give_up_pages),
      in_pool_(policy, QueueKind::pool),
      in_host_(policy, QueueKind::host),
      checkpoints_(policy, page_bytes_, device.traits().has_state()),
      uncopied_(policy, QueueKind::uncopied) {}

std::int32_t PageCache::n_available_cells() const {
    return device_.n_free_cells() + device_.n_more_cells() + static_cast<std::int32_t>(n_idle_) * kPageSize;
}

Result<void> PageCache::make_room(std::int32_t n_cells) {
    while (device_.n_free_cells() < n_cells) {
        if (in_pool_.empty()) return Error{ErrorCode::no_room, "the pool is full of what running requests need"};
        if (Result<void> evicted = evict(in_pool_.lowest(policy_.now_s())); !evicted) return evicted;
    }
    return {};
}

bool PageCache::make_room_unharmed(std::int32_t n_cells) {
    while (device_.n_free_cells() < n_cells) {
        if (in_pool_.empty()) return false;
        Page& page = in_pool_.lowest(policy_.now_s());
        if (!is_safe(page) && !has_host_room()) return false;
        if (!evict(page)) return false;
    }
    return true;
}

bool PageCache::is_safe(const Page& page) const {
    return page.host != nullptr || (is_on_disk(page) && page.n_pins == 0);
}

// Takes a page out of the pool; its copy in the host, if it is worth one, is made first.
Result<void> PageCache::evict(Page& page) {
    assert(page.n_lanes == 0);
    const bool is_wanted = !is_hopeless(page) || page.n_pins > 0 || page.n_waiting > 0 || disk_ != nullptr;
    if (!is_safe(page) && is_wanted &&
        make_host_room(page_bytes_, priority_per_byte(page, policy_.now_s()), claim_of(page))) {
        Result<Blob> rows = rows_of(page);
        if (!rows && page.n_pins > 0) return rows.error();
        if (rows) {
            set_host(page, rows.value());
            save_to_disk(page, std::move(rows).value());
        }
    }
    if (page.n_pins > 0 && page.host == nullptr) {
        return Error{ErrorCode::no_room, "a page that has to stay cannot leave the pool: --host-cache has no room"};
    }
    set_cells(page, {});
    ++usage_.n_evicted;
    if (page.host == nullptr) after_drop(page);
    return {};
}

void PageCache::set_cells(Page& page, std::span<const Cell> cells, bool are_held) {
    const bool was_kept = page.is_kept();
    idle_.note(page, IdlePages::Kind::none);
    page.is_aside = false;
    page.is_unreadable = false;
    if (page.is_resident()) {
        device_.release(page.cells);
        --usage_.n_resident;
        --page.parent->n_resident;
        if (page.n_lanes == 0) --n_idle_;
        owed_.erase({page.index, &page});
    }
    page.cells.assign(cells.begin(), cells.end());
    if (page.is_resident()) {
        if (!are_held) device_.hold(page.cells);
        ++usage_.n_resident;
        ++page.parent->n_resident;
        if (page.n_lanes == 0) ++n_idle_;
        if (page.host == nullptr && disk_ != nullptr) owed_.insert({page.index, &page});
    }
    after_change(page, was_kept);
}

void PageCache::set_host(Page& page, Blob rows) {
    const bool was_kept = page.is_kept();
    if (page.host != nullptr) {
        usage_.host_bytes -= page_bytes_;
        --usage_.n_host;
    }
    page.host = std::move(rows);
    if (page.host != nullptr) {
        usage_.host_bytes += page_bytes_;
        ++usage_.n_host;
        owed_.erase({page.index, &page});
    }
    after_change(page, was_kept);
}

void PageCache::after_change(Page& page, bool was_kept) {
    if (page.is_kept() != was_kept) page.parent->n_kept += was_kept ? -1 : 1;
    tree_.journal().note(page);
    update(page);
    if (!page.parent->is_root()) update(*page.parent);
}

bool PageCache::leaves_pool(const Page& page) const {
    // One behind it may be in use by a lane that does not see this one.
    return page.is_resident() && page.n_lanes == 0 && (page.n_resident == 0 || page.n_out > 0);
}

bool PageCache::leaves_host(const Page& page) const {
    return page.host != nullptr && !page.is_resident() && page.n_kept == 0 && page.n_lanes == 0 && page.n_pins == 0 &&
           page.n_waiting == 0 && (!needs_checkpoints_ || page.checkpoints.empty());
}

bool PageCache::needs_copy(const Page& page) const {
    return page.is_resident() && page.host == nullptr && (page.n_lanes == 0 || lanes_give_up_pages_) &&
           !is_hopeless(page) && !page.is_unreadable;
}

bool PageCache::is_awaited(const Page& page) {
    return page.host != nullptr && !page.is_resident() && page.n_pins == 0 && page.n_waiting > 0;
}

// What a request waits for will be in use at once.
PageCache::Claim PageCache::claim_of(const Page& page) {
    if (page.n_pins > 0) return Claim::pinned;
    return page.n_waiting > 0 ? Claim::awaited : Claim::priority;
}

// No text can begin with it.
bool PageCache::is_hopeless(const Page& page) const {
    return needs_checkpoints_ && page.n_kept == 0 && page.checkpoints.empty();
}

Conversation& PageCache::conversation_of(const Page& page) const {
    return page.owner && !is_hopeless(page) ? *page.owner : policy_.nobody();
}

double PageCache::priority_per_byte(const Page& page, double now_s) const {
    return policy_.priority(conversation_of(page), now_s) / static_cast<double>(std::max<std::size_t>(1, page_bytes_));
}

// Which queues the page belongs into.
void PageCache::update(Page& page) {
    note_place(page);
    in_pool_.set(page, leaves_pool(page) ? &conversation_of(page) : nullptr);
    in_host_.set(page, leaves_host(page) ? &conversation_of(page) : nullptr);
    uncopied_.set(page, needs_copy(page) ? &conversation_of(page) : nullptr);
    if (is_awaited(page)) {
        awaited_.insert(&page);
    } else {
        awaited_.erase(&page);
    }
    const bool is_double = page.is_resident() && page.host != nullptr;
    if (is_double == page.is_double) return;
    page.is_double = is_double;
    if (is_double) {
        doubles_.insert(&page);
    } else {
        doubles_.erase(&page);
    }
}

void PageCache::update(Checkpoint& checkpoint) {
    checkpoints_.set(checkpoint, checkpoint.n_pins == 0 && checkpoint.n_waiting == 0);
}

void PageCache::adopt(Page& page, std::span<const Cell> cells) {
    assert(!page.is_resident());
    if (page_bytes_ == 0) {
        // A purely recurrent model: a page is its name alone.
        if (page.host == nullptr) set_host(page, std::make_shared<Bytes>());
        return;
    }
    assert(cells.size() == kPageCells);
    set_cells(page, cells);
}

// Spares the queue a page that would leave it at once.
void PageCache::adopt_and_enter(Page& page, std::span<const Cell> cells) {
    if (page.is_aside) set_cells(page, {});
    ++n_lane_changes_;
    ++page.n_lanes;
    adopt(page, cells);
}

void PageCache::enter(Page& page) {
    assert(page.is_kept());
    ++n_lane_changes_;
    if (page.n_lanes++ == 0 && page.is_resident()) --n_idle_;
    update(page);
}

void PageCache::leave(Page& page, const ConversationRef& owner) {
    assert(page.n_lanes > 0);
    ++n_lane_changes_;
    if (--page.n_lanes == 0 && page.is_resident()) ++n_idle_;
    own(page, owner);
}

void PageCache::own(Page& page, const ConversationRef& owner) {
    ConversationRef before;  // stays until the queues know of the change
    if (owner && page.owner.get() != owner.get()) before = std::exchange(page.owner, owner);
    if (owner) {
        for (Checkpoint& checkpoint : page.checkpoints) checkpoint.owner = owner;
    }
    update(page);
}

void PageCache::wait_for(Page& page) {
    ++page.n_waiting;
    update(page);
}

void PageCache::stop_waiting_for(Page& page) {
    --page.n_waiting;
    update(page);
    tree_.retire(page);
}

void PageCache::wait_for(Checkpoint& checkpoint) {
    ++checkpoint.n_waiting;
    update(checkpoint);
}

void PageCache::stop_waiting_for(Checkpoint& checkpoint) {
    --checkpoint.n_waiting;
    update(checkpoint);
}

Result<void> PageCache::place(Page& page) {
    if (page.is_aside) {
        Page* back = &page;
        move(std::span(&back, 1), false);
    }
    if (page.is_resident()) return {};
    assert(page.host != nullptr);
    std::array<Cell, kPageCells> cells{};
    const Blob rows = page.host;  // making room must not take it away
    if (Result<void> room = make_room(kPageSize); !room) return room;
    if (Result<void> placed = device_.place(page.begin(), page.tokens, *rows, rows, cells); !placed) return placed;
    set_cells(page, cells, true);
    return {};
}

Result<Blob> PageCache::rows_of(Page& page) {
    if (page.host != nullptr) return page.host;
    try {
        auto rows = std::make_shared<Bytes>(page_bytes_);
        if (Result<void> read = device_.read(page.cells, *rows, rows); !read) return read.error();
        return Blob(std::move(rows));
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "no memory for a page of " + std::to_string(page_bytes_) + " bytes"};
    }
}

// Cheapest first: second copies of what is in the pool, then what is worth least. What is pinned has to find room: for
// it even that goes which somebody waits for (a request will compute it again; a write has the rows in its own hands).
bool PageCache::make_host_room(std::size_t n_bytes, double priority, Claim claim) {
    if (n_bytes > host_budget_) return false;
    const double now_s = policy_.now_s();
    while (usage_.host_bytes + n_bytes > host_budget_) {
        if (!doubles_.empty()) {
            set_host(**doubles_.begin(), nullptr);
            continue;
        }
        Page* page = in_host_.empty() ? nullptr : &in_host_.lowest(now_s);
        double lowest = page != nullptr ? priority_per_byte(*page, now_s) : 0;
        // Pages without hope go before any checkpoint is looked at.
        const bool is_clear = page != nullptr && in_host_.conversation_of(*page) == &policy_.nobody();
        const std::optional<CheckpointQueue::Lowest> checkpoint = is_clear ? std::nullopt : checkpoints_.lowest(now_s);
        if (page == nullptr && !checkpoint) {
            if (claim != Claim::pinned || awaited_.empty()) return false;
            drop_host(**awaited_.begin());
            continue;
        }
        if (checkpoint && (page == nullptr || checkpoint->priority_per_byte < lowest)) {
            page = nullptr;
            lowest = checkpoint->priority_per_byte;
        }
        if (claim == Claim::priority && lowest > priority) return false;
        if (page != nullptr) {
            drop_host(*page);
        } else {
            drop(*checkpoint->checkpoint);
        }
    }
    return true;
}

void PageCache::drop_host(Page& page) {
    set_host(page, nullptr);
    after_drop(page);
}

// It has left all memory: what stands behind it is of no use any more.
void PageCache::after_drop(Page& page) {
    ++usage_.n_dropped;
    set_keys(page, nullptr);
    for (auto it = page.checkpoints.begin(); it != page.checkpoints.end();) {
        Checkpoint& checkpoint = *it++;
        if (checkpoint.n_pins == 0 && checkpoint.n_waiting == 0) drop(checkpoint);
    }
    tree_.retire(page);
}

bool PageCache::keep(Page& page, Blob rows) {
    if (page.host != nullptr) return true;
    assert(rows->size() == page_bytes_);
    if (!make_host_room(page_bytes_, priority_per_byte(page, policy_.now_s()), claim_of(page))) return false;
    set_host(page, std::move(rows));
    save_to_disk(page, page.host);  // from a file: what is read from disk is there already
    return true;
}

Checkpoint* PageCache::keep_checkpoint(Page& page, std::span<const Token> rest, CheckpointKind kind,
                                       CheckpointBlob data, const ConversationRef& owner, bool saves) {
    Checkpoint* checkpoint = tree_.find_checkpoint(page, rest);
    if (checkpoint != nullptr) {
        if (owner) checkpoint->owner = owner;
        // The newer data says the same, but may hold logits that the older does not.
        if (!checkpoint->data->logits.empty() || data->logits.empty()) return checkpoint;
        const std::size_t n_more = data->n_bytes() - checkpoint->data->n_bytes();
        if (usage_.host_bytes + n_more > host_budget_) return checkpoint;
        if (checkpoint->n_pins > 0 && usage_.pinned_bytes + n_more > host_budget_) return checkpoint;
        usage_.host_bytes += n_more;
        if (checkpoint->n_pins > 0) usage_.pinned_bytes += n_more;
        checkpoint->data = std::move(data);
        return checkpoint;
    }
    // It is put into its place to see what it is worth there, and while it waits nothing makes it go.
    const std::size_t n_bytes = data->n_bytes();
    checkpoint = &tree_.add_checkpoint(page, rest, kind, std::move(data));
    checkpoint->owner = owner;
    checkpoints_.add(*checkpoint);
    const double priority = checkpoints_.priority_of_new(*checkpoint, policy_.now_s());
    ++checkpoint->n_waiting;
    const bool has_room = make_host_room(n_bytes, priority, Claim::priority);
    --checkpoint->n_waiting;
    if (!has_room) {
        checkpoints_.remove(*checkpoint);
        tree_.remove_checkpoint(*checkpoint);
        return nullptr;
    }
    usage_.host_bytes += n_bytes;
    ++usage_.n_host_checkpoints;
    update(*checkpoint);
    if (!page.is_root()) update(page);
    if (saves) save_checkpoint(page, rest, checkpoint->data);
    return checkpoint;
}

void PageCache::drop(Checkpoint& checkpoint) {
    assert(checkpoint.n_pins == 0 && checkpoint.n_waiting == 0);
    Page& page = *checkpoint.page;
    checkpoints_.set(checkpoint, false);
    usage_.host_bytes -= checkpoint.data->n_bytes();
    --usage_.n_host_checkpoints;
    checkpoints_.remove(checkpoint);
    std::erase(unsaved_, &checkpoint);
    tree_.remove_checkpoint(checkpoint);
    if (!page.is_root()) update(page);
}

Result<void> PageCache::pin(Page& page) {
    if (page.n_pins == 0) {
        if (usage_.pinned_bytes + page_bytes_ > host_budget_) {
            return Error{ErrorCode::no_room, "what slots hold would outgrow --host-cache; free one or give it more"};
        }
        usage_.pinned_bytes += page_bytes_;
    }
    ++page.n_pins;
    update(page);
    return {};
}

void PageCache::unpin(Page& page) {
    assert(page.n_pins > 0);
    if (--page.n_pins == 0) usage_.pinned_bytes -= page_bytes_;
    update(page);
    tree_.retire(page);
}

Result<void> PageCache::pin(Checkpoint& checkpoint) {
    if (checkpoint.n_pins == 0) {
        if (usage_.pinned_bytes + checkpoint.data->n_bytes() > host_budget_) {
            return Error{ErrorCode::no_room, "what slots hold would outgrow --host-cache; free one or give it more"};
        }
        usage_.pinned_bytes += checkpoint.data->n_bytes();
    }
    ++checkpoint.n_pins;
    update(checkpoint);
    return {};
}

void PageCache::unpin(Checkpoint& checkpoint) {
    assert(checkpoint.n_pins > 0);
    if (--checkpoint.n_pins > 0) return;
    usage_.pinned_bytes -= checkpoint.data->n_bytes();
    update(checkpoint);
}

bool PageCache::is_on_disk(const Page& page) const { return disk_ != nullptr && disk_->has_page(page.name); }

void PageCache::save_to_disk(Page& page, Blob rows) {
    if (disk_ == nullptr || disk_->has_page(page.name)) return;
    wait_for(page);
    disk_->write_page(page.name, page.parent->name, page.tokens, std::move(rows), [this, &page](bool) {
        tree_.journal().note(page);
        stop_waiting_for(page);
    });
}

void PageCache::save_checkpoint(Page& page, std::span<const Token> rest, CheckpointBlob data) {
    if (disk_ == nullptr) return;
    PageScores scores = scores_of(path_to(page));
    if (!disk_->may_write(checkpoint_file_bytes(rest.size(), *data, scores.size()))) {
        if (Checkpoint* checkpoint = tree_.find_checkpoint(page, rest)) unsaved_.push_back(checkpoint);
    }
    disk_->write_checkpoint(page.name, rest, {std::move(data), std::move(scores)}, [](bool) {});
}

Result<void> PageCache::evict_idle() {
    while (!in_pool_.empty()) {
        if (Result<void> evicted = evict(in_pool_.lowest(policy_.now_s())); !evicted) return evicted;
    }
    return {};
}

Result<void> PageCache::empty_pool() {
    if (Result<void> evicted = evict_idle(); !evicted) return evicted;
    assert(usage_.n_resident == 0);
    return {};
}

bool PageCache::forget(Page& page) {
    if (page.n_lanes > 0 || page.n_out > 0 || page.n_pins > 0 || page.n_waiting > 0) return false;
    if (disk_ != nullptr) {
        for (const CheckpointOnDisk& checkpoint : disk_->checkpoints_after(page.name)) {
            disk_->erase(checkpoint.name);
        }
        disk_->erase(page.name);
    }
    if (page.host != nullptr) set_host(page, nullptr);
    if (page.is_resident()) set_cells(page, {});
    after_drop(page);
    return true;
}

void PageCache::clear() {
    for (Checkpoint* checkpoint : checkpoints_.all()) drop(*checkpoint);
    // From the leaves up: dropping one page makes its parent a candidate.
    for (bool has_dropped = true; has_dropped;) {
        has_dropped = false;
        for (Page* page : in_pool_.all()) {
            if (page->n_pins > 0 || page->n_waiting > 0) continue;
            if (page->host != nullptr) set_host(*page, nullptr);
            set_cells(*page, {});
            set_keys(*page, nullptr);
            tree_.retire(*page);
            has_dropped = true;
        }
    }
    while (!in_host_.empty()) drop_host(in_host_.lowest(policy_.now_s()));
    tree_.forget_evicted();
}

}  // namespace luce::memory
