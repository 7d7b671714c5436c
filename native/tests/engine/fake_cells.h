// Where the arithmetic model's cells lie: what a computation looks at, and what is set aside. Cells say whether they
// are free (is_free()) and set aside (is_aside); nothing else of them is known here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memory/manager/kv_device.h"

namespace luce::tests {

// Once the n_more lowest free cells are used.
template <typename Cell>
std::int32_t n_spanned(const std::vector<Cell>& cells, std::int32_t n_more) {
    std::int32_t n = 0;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const bool will_be_used = cells[i].is_free() && n_more-- > 0;
        const bool is_used = !cells[i].is_free() && !cells[i].is_aside;
        if (will_be_used || is_used) n = static_cast<std::int32_t>(i) + 1;
    }
    return n;
}

// To the highest free cell, or the lowest, if that is further than its own. Whether it has moved.
template <typename Cell>
bool move_cell(std::vector<Cell>& cells, memory::Cell& at, bool is_aside) {
    memory::Cell to = at;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const auto other = static_cast<memory::Cell>(i);
        if (cells[i].is_free() && (is_aside ? other > to : other < to)) to = other;
    }
    cells[at].is_aside = is_aside;
    if (to == at) return false;
    std::swap(cells[to], cells[at]);
    at = to;
    return true;
}

template <typename Cell>
bool is_seen_from(const std::vector<Cell>& cells, memory::Cell first) {
    return std::any_of(cells.begin() + first, cells.end(), [](const Cell& cell) { return !cell.lanes.empty(); });
}

// Cells that come and go by so many, if not 0.
struct ElasticCells {
    std::int32_t n_step = 0;
    bool refuses = false;  // there is no memory for more of them
    bool was_refused = false;
    int n_grown = 0;  // times that more came

    std::int32_t n_more(std::int32_t n_left) const { return n_step > 0 && !was_refused ? n_left : 0; }

    template <typename Cell>
    bool resize(std::vector<Cell>& cells, std::int32_t n) {
        const auto n_before = static_cast<std::int32_t>(cells.size());
        was_refused = was_refused || (n > n_before && refuses);
        if (n > n_before && refuses) return false;
        const auto is_free = [](const Cell& cell) { return cell.is_free(); };
        if (n < n_before && !std::all_of(cells.begin() + n, cells.end(), is_free)) return false;
        n_grown += n > n_before ? 1 : 0;
        cells.resize(static_cast<std::size_t>(n));
        return true;
    }
};

}  // namespace luce::tests
