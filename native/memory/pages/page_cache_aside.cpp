// The part of PageCache that keeps idle pages out of the cells that computations look at, and brings them back.
#include <algorithm>
#include <cassert>

#include "memory/pages/page_cache.h"

namespace luce::memory {

namespace {

// One that a lane has put out of its sight is in the pool because it is about to be seen again.
IdlePages::Kind kind_of(const Page& page) {
    if (page.is_aside) return IdlePages::Kind::aside;
    const bool is_idle = page.is_resident() && page.n_lanes == 0 && page.n_out == 0;
    return is_idle ? IdlePages::Kind::low : IdlePages::Kind::none;
}

}  // namespace

void PageCache::note_place(Page& page) { idle_.note(page, kind_of(page)); }

bool PageCache::are_idle_pages_right() const {
    std::size_t n_low = 0;
    std::size_t n_aside = 0;
    bool is_right = true;
    tree_.for_each([&](Page& page) {
        const IdlePages::Kind kind = kind_of(page);
        n_low += kind == IdlePages::Kind::low ? 1 : 0;
        n_aside += kind == IdlePages::Kind::aside ? 1 : 0;
        if (page.place.kind != kind || (page.is_aside && (!page.is_resident() || page.n_lanes > 0))) is_right = false;
        if (kind != IdlePages::Kind::none && page.place.lowest != std::ranges::min(page.cells)) is_right = false;
    });
    return is_right && n_low == idle_.n_low() && n_aside == idle_.n_aside();
}

// All at once: what lies side by side is copied as one.
void PageCache::move(std::span<Page* const> pages, bool are_aside) {
    std::vector<Cell> cells;
    for (const Page* page : pages) cells.insert(cells.end(), page->cells.begin(), page->cells.end());
    if (are_aside) {
        device_.set_aside(cells);
    } else {
        device_.bring_back(cells);
    }
    for (std::size_t i = 0; i < pages.size(); ++i) {
        Page& page = *pages[i];
        idle_.note(page, IdlePages::Kind::none);
        std::copy_n(cells.begin() + static_cast<std::ptrdiff_t>(i * kPageSize), kPageSize, page.cells.begin());
        page.is_aside = are_aside;
        note_place(page);
    }
}

void PageCache::set_idle_aside(std::size_t n_pages) {
    const std::vector<Page*> pages = idle_.lowest_low(n_pages);
    if (!pages.empty()) move(pages, true);
}

// In a pool that is nearly full what makes way elsewhere leaves room among the pages that are set aside.
void PageCache::clear_lowest_cells(std::int32_t n_cells) {
    const std::int32_t n_free = device_.n_free_cells();
    if (n_free < n_cells || idle_.n_aside() == 0) return;
    if (device_.n_spanned_cells(n_cells) <= static_cast<std::int32_t>(idle_.lowest_aside())) return;
    move(idle_.lowest(static_cast<std::size_t>((n_cells + kPageSize - 1) / kPageSize)), true);
}

bool PageCache::clear_from(Cell first) {
    if (!make_room_unharmed(device_.n_cells() - static_cast<std::int32_t>(first))) return false;
    const auto pages = idle_.reaching(first);
    if (!pages.empty()) move(pages, false);
    return std::ranges::all_of(pages, [first](const Page* page) { return std::ranges::max(page->cells) < first; });
}

void PageCache::bring_back(std::span<Page* const> pages) {
    while (!pages.empty()) {
        // One page to begin with; what it leaves has room for the next one.
        if (device_.n_free_cells() < kPageSize && !make_room(kPageSize)) return move(pages, false);
        const auto n_fitting = static_cast<std::size_t>(device_.n_free_cells() / kPageSize);
        const std::size_t n = std::min(pages.size(), n_fitting);
        clear_lowest_cells(static_cast<std::int32_t>(n) * kPageSize);
        move(pages.first(n), false);
        pages = pages.subspan(n);
    }
}

}  // namespace luce::memory
