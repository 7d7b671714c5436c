// Slots: the numbered snapshots. A slot is a text's place in the tree, with all it needs pinned: no copy of any row.
// Owns the pins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "memory/pages/page_cache.h"
#include "memory/pages/prefix_tree.h"

namespace luce::memory {

struct Slot {
    Page* page = nullptr;              // the last full page, or the root
    Checkpoint* checkpoint = nullptr;  // what stands behind it; null where full pages are all there is to it
    Position position = 0;
    Position begin = 0;  // of a thin slot's range: it extends a slot that reaches up to here

    bool is_thin() const { return begin > 0; }
};

class Slots {
public:
    Slots(PageCache& cache, std::int32_t n_slots) : cache_(cache), slots_(static_cast<std::size_t>(n_slots)) {}
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;

    std::int32_t n_slots() const { return static_cast<std::int32_t>(slots_.size()); }
    std::int32_t n_used() const;

    // Put `slot` in the place of what is there, which is given up only when all the new one needs is pinned. Errors:
    // bad_slot, no_room (nothing has changed).
    Result<void> set(std::int32_t number, const Slot& slot);

    // Errors: bad_slot, empty_slot.
    Result<const Slot*> get(std::int32_t number) const;
    Result<void> free(std::int32_t number);
    Result<void> check(std::int32_t number) const;  // bad_slot

    std::vector<std::int32_t> used() const;

    // Those that pin this page.
    std::vector<std::int32_t> pinning(const Page& page) const;

    // The same without a number: keep what a place in a text needs, and let go of it. Errors: no_room (nothing has
    // changed).
    Result<void> hold(const Slot& place);
    void let_go(const Slot& place);

    std::optional<std::string> check_integrity() const;

private:
    PageCache& cache_;
    std::vector<std::optional<Slot>> slots_;
};

}  // namespace luce::memory
