#include "memory/pages/idle_pages.h"

#include <algorithm>

namespace luce::memory {

void IdlePages::note(Page& page, Kind kind) {
    PlaceInPool& place = page.place;
    if (place.kind == kind) return;
    if (place.kind != Kind::none) of(place.kind).erase({place.lowest, &page});
    place.kind = kind;
    if (kind == Kind::none) return;
    place.lowest = *std::min_element(page.cells.begin(), page.cells.end());
    of(kind).insert({place.lowest, &page});
}

std::vector<Page*> IdlePages::lowest_low(std::size_t n) const {
    std::vector<Page*> pages;
    for (auto it = low_.begin(); it != low_.end() && pages.size() < n; ++it) pages.push_back(it->second);
    return pages;
}

std::vector<Page*> IdlePages::reaching(Cell first) const {
    std::vector<Page*> pages;
    for (const Pages* all : {&low_, &aside_}) {
        for (const auto& [lowest, page] : *all) {
            if (std::ranges::max(page->cells) >= first) pages.push_back(page);
        }
    }
    return pages;
}

std::vector<Page*> IdlePages::lowest(std::size_t n) const {
    std::vector<Page*> pages;
    auto low = low_.begin();
    auto aside = aside_.begin();
    while (pages.size() < n && (low != low_.end() || aside != aside_.end())) {
        const bool is_low = aside == aside_.end() || (low != low_.end() && *low < *aside);
        pages.push_back((is_low ? low++ : aside++)->second);
    }
    return pages;
}

}  // namespace luce::memory
