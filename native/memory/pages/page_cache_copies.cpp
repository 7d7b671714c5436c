// The part of PageCache that copies pages out of the pool before they have to leave it. Says which page is next; when
// there is time for it is the engine's to say.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "memory/pages/block_source.h"
#include "memory/pages/page_cache.h"
#include "memory/tiers/disk_store.h"

namespace luce::memory {
namespace {

constexpr std::int32_t kShortPart = 8;  // of the pool: less than that to be had without a copy is short

// Beside what is under way already (a state of 150 MB, say) nothing more is sent: whoever needs the device's copies
// next would have to wait for it.
constexpr std::size_t kMostUnderWay_bytes = std::size_t{8} << 20;

}  // namespace

// In host memory idle texts leave as soon as another one begins (PrefixPlacer), however much room there is.
bool PageCache::is_room_short() const {
    if (device_.traits().is_host_memory) return true;
    const std::int32_t n_at_once = n_available_cells() - static_cast<std::int32_t>(uncopied_.size()) * kPageSize;
    return n_at_once < device_.traits().n_cells / kShortPart;
}

bool PageCache::has_to_copy(bool is_idle) const {
    if (!owed_.empty() || can_save_checkpoint()) return true;
    return !uncopied_.empty() && has_host_room() && (is_idle || is_room_short());
}

// Only while nobody computes a block of another kind of memory is asked for: getting one stops the device.
std::size_t PageCache::copy_next(bool is_idle) {
    if (can_save_checkpoint()) return save_next_checkpoint();
    if (device_.n_bytes_under_way() > kMostUnderWay_bytes) return 0;
    if (is_idle && !prepare_block(page_bytes_)) return 0;
    Page* page = take_owed();
    if (page == nullptr && has_to_copy(is_idle)) page = &first_to_leave();
    return page != nullptr && copy_out(*page) ? page_bytes_ : 0;
}

// Of the conversation that is worth least, an end of a text. The one before it is the next to be asked for.
Page& PageCache::first_to_leave() {
    Page* page = &uncopied_.lowest(policy_.now_s());
    const auto follows = [&](const auto& child) {
        return uncopied_.conversation_of(*child.second) == uncopied_.conversation_of(*page);
    };
    for (bool goes_on = true; goes_on;) {
        const auto next = std::ranges::find_if(page->children, follows);
        goes_on = next != page->children.end();
        if (goes_on) page = next->second.get();
    }
    if (needs_copy(*page->parent)) uncopied_.set_first(*page->parent);
    return *page;
}

// A model with state has no use for pages without a checkpoint behind them: those go first.
std::size_t PageCache::copy_owed() {
    std::size_t n_files = 0;
    for (; can_save_checkpoint(); ++n_files) save_next_checkpoint();
    while (disk_ != nullptr && disk_->may_write(page_bytes_)) {
        Page* page = take_owed();
        if (page == nullptr) break;
        copy_out(*page);
        ++n_files;
    }
    return n_files;
}

bool PageCache::can_save_checkpoint() const {
    if (unsaved_.empty()) return false;
    const Checkpoint& next = *unsaved_.back();
    const auto n_most_scores = static_cast<std::size_t>(next.page->index + 1);
    return disk_->may_write(checkpoint_file_bytes(next.rest.size(), *next.data, n_most_scores));
}

// The newest first: a text goes on from its end. REQUIRES: can_save_checkpoint().
std::size_t PageCache::save_next_checkpoint() {
    Checkpoint& next = *unsaved_.back();
    unsaved_.pop_back();
    save_checkpoint(*next.page, next.rest, next.data);
    return next.data->n_bytes();
}

void PageCache::copy_to_disk(Page& page) {
    owed_.erase({page.index, &page});
    copy_out(page);
}

Page* PageCache::take_owed() {
    while (!owed_.empty()) {
        Page* page = owed_.begin()->second;
        owed_.erase(owed_.begin());
        if (!is_on_disk(*page)) return page;
    }
    return nullptr;
}

bool PageCache::copy_out(Page& page) {
    Result<Blob> rows = rows_of(page);
    if (!rows) {
        log_warn("a page could not be copied out of the pool: " + rows.error().text);
        page.is_unreadable = true;
        update(page);
        return false;
    }
    save_to_disk(page, rows.value());
    if (page.host == nullptr && has_host_room()) set_host(page, std::move(rows).value());
    return true;
}

}  // namespace luce::memory
