#include "memory/snapshots/slots.h"

#include <algorithm>

namespace luce::memory {
namespace {

// The pages that a slot keeps, from the last one up. A thin one keeps what lies before its range, too: the tree holds a
// page for as long as one behind it has rows, and what is held has to be counted.
template <typename Visit>
void for_pages(const Slot& slot, Visit visit) {
    for (Page* page = slot.page; !page->is_root(); page = page->parent) {
        if (!visit(*page)) return;
    }
}

}  // namespace

std::int32_t Slots::n_used() const {
    return static_cast<std::int32_t>(
        std::count_if(slots_.begin(), slots_.end(), [](const auto& slot) { return slot.has_value(); }));
}

Result<void> Slots::check(std::int32_t number) const {
    if (number >= 0 && number < n_slots()) return {};
    return Error{ErrorCode::bad_slot, "there is no slot " + std::to_string(number) + ": --slots gives 0 to " +
                                          std::to_string(n_slots() - 1)};
}

Result<const Slot*> Slots::get(std::int32_t number) const {
    if (Result<void> checked = check(number); !checked) return checked.error();
    const std::optional<Slot>& slot = slots_[static_cast<std::size_t>(number)];
    if (!slot) return Error{ErrorCode::empty_slot, "slot " + std::to_string(number) + " is empty"};
    return &*slot;
}

std::vector<std::int32_t> Slots::pinning(const Page& page) const {
    std::vector<std::int32_t> numbers = used();
    std::erase_if(numbers, [&](std::int32_t number) {
        bool reaches = false;
        for_pages(*slots_[static_cast<std::size_t>(number)], [&](const Page& own) {
            reaches = &own == &page;
            return !reaches;
        });
        return !reaches;
    });
    return numbers;
}

Result<void> Slots::hold(const Slot& slot) {
    Result<void> pinned;
    std::vector<Page*> done;
    for_pages(slot, [&](Page& page) {
        pinned = cache_.pin(page);
        if (pinned) done.push_back(&page);
        return pinned.ok();
    });
    if (pinned && slot.checkpoint != nullptr) pinned = cache_.pin(*slot.checkpoint);
    if (!pinned) {
        for (Page* page : done) cache_.unpin(*page);
    }
    return pinned;
}

void Slots::let_go(const Slot& slot) {
    if (slot.checkpoint != nullptr) cache_.unpin(*slot.checkpoint);
    std::vector<Page*> pages;
    for_pages(slot, [&](Page& page) {
        pages.push_back(&page);
        return true;
    });
    // From the last page up: a page may go as soon as nothing behind it needs it.
    for (Page* page : pages) cache_.unpin(*page);
}

Result<void> Slots::set(std::int32_t number, const Slot& slot) {
    if (Result<void> checked = check(number); !checked) return checked;
    if (Result<void> pinned = hold(slot); !pinned) return pinned;
    std::optional<Slot>& place = slots_[static_cast<std::size_t>(number)];
    if (place) let_go(*place);
    place = slot;
    return {};
}

Result<void> Slots::free(std::int32_t number) {
    const Result<const Slot*> slot = get(number);
    if (!slot) return slot.error();
    const Slot freed = *slot.value();
    slots_[static_cast<std::size_t>(number)].reset();
    let_go(freed);
    return {};
}

std::vector<std::int32_t> Slots::used() const {
    std::vector<std::int32_t> numbers;
    for (std::int32_t i = 0; i < n_slots(); ++i) {
        if (slots_[static_cast<std::size_t>(i)]) numbers.push_back(i);
    }
    return numbers;
}

std::optional<std::string> Slots::check_integrity() const {
    for (const std::optional<Slot>& slot : slots_) {
        if (!slot) continue;
        const Position end = slot->checkpoint != nullptr ? slot->checkpoint->position() : slot->page->end();
        if (end != slot->position) return "a slot's position is not where its pages and checkpoint end";
        if (slot->checkpoint != nullptr && (slot->checkpoint->page != slot->page || slot->checkpoint->n_pins == 0)) {
            return "a slot's checkpoint is not its own";
        }
        std::optional<std::string> wrong;
        for_pages(*slot, [&](const Page& page) {
            if (page.n_pins == 0) wrong = "a slot's page is not pinned";
            return !wrong;
        });
        if (wrong) return wrong;
    }
    return std::nullopt;
}

}  // namespace luce::memory
