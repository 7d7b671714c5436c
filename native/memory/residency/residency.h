// Residency: which pages of a text a lane sees where the pool cannot hold them all. Pure: it is told of the pages and
// says which; KvCacheManager moves them.
//
// The text's first pages stay (attention leans on them whatever they say), and its last ones. Of the room that is left
// half goes to what is newest, because plain code is predicted from what stands just before it, and half to the pages
// that matter most to what is being written, by their scores; without scores all goes to the newest, which is LRU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"

namespace luce::memory {

struct ResidencyRules {
    std::size_t n_sinks = 1;   // pages at the start that every lane sees
    std::size_t n_recent = 4;  // and full pages at the end
    Position tau = 64;         // tokens of an answer after which the choice is made anew
};

// A page of a lane's text, in their order.
struct PageView {
    bool is_seen = false;
    bool is_pinned = false;      // by the request
    std::optional<float> score;  // unset: never asked for
};

// Whether it is one that a lane always sees.
bool has_to_stay(std::span<const PageView> pages, std::size_t index, const ResidencyRules& rules);

// For each page whether the lane should see it: n_most of them, more only where more have to stay.
std::vector<bool> choose_pages(std::span<const PageView> pages, std::size_t n_most, const ResidencyRules& rules);

// What becomes of a choice: one page at a time goes, and another one comes in its place.
struct PageMove {
    std::optional<std::size_t> out;  // unset: there is room beside what is seen
    std::size_t in = 0;
};

// From what is seen to what was chosen: n_most moves at the most, what matters most comes first, what matters least
// goes first.
std::vector<PageMove> plan_moves(std::span<const PageView> pages, const std::vector<bool>& chosen, std::size_t n_most);

// The one of the seen pages that the lane can do without soonest; none: all of them have to stay.
std::optional<std::size_t> first_to_go(std::span<const PageView> pages, const ResidencyRules& rules);

// Cells that a lane needs at the least, whatever its text's length: what has to stay, the page that it fills, and what
// a computation of n_call tokens adds.
std::int32_t least_cells(const ResidencyRules& rules, std::int32_t n_call);

}  // namespace luce::memory
