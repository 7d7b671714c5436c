// IdlePages: the pages in the pool that no lane sees, by their lowest cells: those among the cells that computations
// look at, and those set aside. Moves nothing; knows neither the device nor what a page is worth.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "memory/pages/prefix_tree.h"

namespace luce::memory {

class IdlePages {
public:
    using Kind = PlaceInPool::Kind;

    // What it is now. To be called before the page's cells change (none), and after whatever else does.
    void note(Page& page, Kind kind);

    std::size_t n_low() const { return low_.size(); }
    std::size_t n_aside() const { return aside_.size(); }

    std::vector<Page*> lowest_low(std::size_t n) const;
    std::vector<Page*> lowest(std::size_t n) const;              // of both
    std::vector<Page*> reaching(Cell first) const;               // of both, with a cell from there on
    Cell lowest_aside() const { return aside_.begin()->first; }  // REQUIRES: there is one

private:
    using Pages = std::set<std::pair<Cell, Page*>>;

    Pages& of(Kind kind) { return kind == Kind::low ? low_ : aside_; }

    Pages low_;
    Pages aside_;
};

}  // namespace luce::memory
