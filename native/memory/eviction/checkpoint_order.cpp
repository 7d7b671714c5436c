#include "memory/eviction/checkpoint_order.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "memory/pages/prefix_tree.h"

namespace luce::memory {
namespace {

constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();

// Of the checkpoints behind the page, `but` left out, the one with the longest rest below a length.
Checkpoint* longest(const Page& page, std::size_t below, const Checkpoint* but) {
    const Checkpoint* found = nullptr;
    for (const Checkpoint& checkpoint : page.checkpoints) {
        if (&checkpoint == but || checkpoint.rest.size() >= below) continue;
        if (found == nullptr || checkpoint.rest.size() > found->rest.size()) found = &checkpoint;
    }
    return const_cast<Checkpoint*>(found);
}

std::int32_t page_before(const Checkpoint& checkpoint) {
    return checkpoint.link.before != nullptr ? checkpoint.link.before->page->index : -1;
}

bool is_above(const Page& page, const Page& below) {
    return page.index <= below.index && &ancestor(const_cast<Page&>(below), page.index) == &page;
}

// Whether `checkpoint`, which is new, has come between the checkpoint before it and `behind`.
bool is_between(const Checkpoint& checkpoint, const Checkpoint& behind) {
    if (behind.page == checkpoint.page) return behind.rest.size() > checkpoint.rest.size();
    if (checkpoint.link.before != nullptr && checkpoint.link.before->page == checkpoint.page) return true;
    return checkpoint.page->checkpoints.size() == 1 && is_above(*checkpoint.page, *behind.page);
}

}  // namespace

Checkpoint*& CheckpointOrder::first_behind(Checkpoint* checkpoint) {
    return checkpoint != nullptr ? checkpoint->link.first_behind : first_;
}

void CheckpointOrder::attach(Checkpoint& checkpoint, Checkpoint* before) {
    Checkpoint*& first = first_behind(before);
    checkpoint.link.before = before;
    checkpoint.link.previous = nullptr;
    checkpoint.link.next = std::exchange(first, &checkpoint);
    if (checkpoint.link.next != nullptr) checkpoint.link.next->link.previous = &checkpoint;
}

void CheckpointOrder::detach(Checkpoint& checkpoint) {
    const CheckpointLink& own = checkpoint.link;
    (own.previous != nullptr ? own.previous->link.next : first_behind(own.before)) = own.next;
    if (own.next != nullptr) own.next->link.previous = own.previous;
}

void CheckpointOrder::find_before(Checkpoint& checkpoint) {
    checkpoint.link = {};
    checkpoint.link.before = longest(*checkpoint.page, checkpoint.rest.size(), &checkpoint);
    if (checkpoint.link.before != nullptr) return;
    bool is_alone = true;
    for (const Page* page = checkpoint.page; page != nullptr; page = page->parent) {
        if (page != checkpoint.page) {
            if (!page->checkpoints.empty()) {
                checkpoint.link.before = longest(*page, kAny, nullptr);
                return;
            }
            is_alone = is_alone && !page->is_root() && page->n_kept <= 1;
            checkpoint.link.n_alone += is_alone ? 1 : 0;
        }
        // Nothing was linked since, so what was known there is still so.
        if (page != known_.page || page->name != known_.name) continue;
        if (known_.before != nullptr && known_.before->page == checkpoint.page) continue;  // with a longer rest
        checkpoint.link.before = known_.before;
        checkpoint.link.n_alone += is_alone ? known_.n_alone : 0;
        return;
    }
}

void CheckpointOrder::begin(const Page& page) {
    if (page.checkpoints.empty() && !page.is_root()) return;
    known_ = {&page, page.name, page.index, longest(page, kAny, nullptr), 0};
}

void CheckpointOrder::follow(const Page& page) {
    const Page& above = *page.parent;
    if (known_.page != &above || known_.name != above.name) return;
    const bool is_behind_above = known_.before != nullptr && known_.before->page == &above;
    const bool is_alone = !is_behind_above && !above.is_root() && above.n_kept <= 1;
    Checkpoint* here = longest(page, kAny, nullptr);
    known_ = {&page, page.name, page.index, here != nullptr ? here : known_.before,
              here == nullptr && is_alone ? known_.n_alone + 1 : 0};
}

void CheckpointOrder::link(Checkpoint& checkpoint) {
    find_before(checkpoint);
    attach(checkpoint, checkpoint.link.before);
    known_ = {checkpoint.page, checkpoint.page->name, checkpoint.page->index, longest(*checkpoint.page, kAny, nullptr),
              0};
    // Most stand at the end of all that is kept: nothing is behind them that could be reached.
    if (checkpoint.page->n_kept == 0 && checkpoint.page->checkpoints.size() == 1) return;
    for (Checkpoint* behind = first_behind(checkpoint.link.before); behind != nullptr;) {
        Checkpoint* next = behind->link.next;
        if (behind != &checkpoint && is_between(checkpoint, *behind)) {
            detach(*behind);
            attach(*behind, &checkpoint);
            const std::int32_t n_between = std::max(0, behind->page->index - checkpoint.page->index - 1);
            behind->link.n_alone = std::min(behind->link.n_alone, n_between);
        }
        behind = next;
    }
}

void CheckpointOrder::unlink(Checkpoint& checkpoint) {
    while (Checkpoint* behind = checkpoint.link.first_behind) {
        const bool is_here = behind->page == checkpoint.page;
        Checkpoint* here = longest(*checkpoint.page, is_here ? behind->rest.size() : kAny, &checkpoint);
        detach(*behind);
        attach(*behind, here != nullptr ? here : checkpoint.link.before);
        const bool was_alone = behind->link.n_alone == behind->page->index - checkpoint.page->index - 1;
        if (is_here || here != nullptr || !was_alone || checkpoint.page->is_root() || checkpoint.page->n_kept > 1)
            continue;
        behind->link.n_alone += 1 + checkpoint.link.n_alone;
    }
    forget(checkpoint);
    detach(checkpoint);
    checkpoint.link = {};
}

void CheckpointOrder::forget(const Checkpoint& checkpoint) {
    if (known_.before != &checkpoint) return;
    if (Checkpoint* here = longest(*checkpoint.page, kAny, &checkpoint)) {
        known_.before = here;
        return;
    }
    const bool is_here = known_.page == checkpoint.page;
    const bool was_alone = known_.n_alone == known_.index - checkpoint.page->index - 1;
    if (is_here) {
        known_.n_alone = checkpoint.link.n_alone;
    } else if (was_alone && !checkpoint.page->is_root() && checkpoint.page->n_kept <= 1) {
        known_.n_alone += 1 + checkpoint.link.n_alone;
    }
    known_.before = checkpoint.link.before;
}

bool CheckpointOrder::is_right(const Checkpoint& checkpoint) {
    const Checkpoint* before = checkpoint.link.before;
    for (const Page* page = checkpoint.page; page != nullptr; page = page->parent) {
        for (const Checkpoint& other : page->checkpoints) {
            if (&other == before) return page != checkpoint.page || other.rest.size() < checkpoint.rest.size();
        }
    }
    return before == nullptr;
}

double n_saved_pages(const Checkpoint& checkpoint) {
    auto n_rest = static_cast<double>(checkpoint.rest.size());
    const Checkpoint* before = checkpoint.link.before;
    if (before != nullptr && before->page == checkpoint.page) n_rest -= static_cast<double>(before->rest.size());
    return n_rest / kPageSize + (checkpoint.page->index - page_before(checkpoint));
}

std::int32_t n_freed_pages(const Checkpoint& checkpoint) {
    const bool is_alone =
        !checkpoint.page->is_root() && checkpoint.page->n_kept == 0 && checkpoint.page->checkpoints.size() == 1;
    return is_alone ? 1 + checkpoint.link.n_alone : 0;
}

}  // namespace luce::memory
