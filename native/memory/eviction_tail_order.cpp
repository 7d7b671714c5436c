#include "memory/eviction_tail_order.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "memory/page_tree.h"

namespace luce::memory {
namespace {

constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();

// Of the tails behind the page, `but` left out, the one with the longest rest below a length.
Tail* longest(const Page& page, std::size_t below, const Tail* but) {
    const Tail* found = nullptr;
    for (const Tail& tail : page.tails) {
        if (&tail == but || tail.rest.size() >= below) continue;
        if (found == nullptr || tail.rest.size() > found->rest.size()) found = &tail;
    }
    return const_cast<Tail*>(found);
}

std::int32_t page_before(const Tail& tail) { return tail.link.before != nullptr ? tail.link.before->page->index : -1; }

bool is_above(const Page& page, const Page& below) {
    return page.index <= below.index && &ancestor(const_cast<Page&>(below), page.index) == &page;
}

// Whether `tail`, which is new, has come between the tail before it and `behind`.
bool is_between(const Tail& tail, const Tail& behind) {
    if (behind.page == tail.page) return behind.rest.size() > tail.rest.size();
    if (tail.link.before != nullptr && tail.link.before->page == tail.page) return true;
    return tail.page->tails.size() == 1 && is_above(*tail.page, *behind.page);
}

}  // namespace

Tail*& TailOrder::first_behind(Tail* tail) { return tail != nullptr ? tail->link.first_behind : first_; }

void TailOrder::attach(Tail& tail, Tail* before) {
    Tail*& first = first_behind(before);
    tail.link.before = before;
    tail.link.previous = nullptr;
    tail.link.next = std::exchange(first, &tail);
    if (tail.link.next != nullptr) tail.link.next->link.previous = &tail;
}

void TailOrder::detach(Tail& tail) {
    const TailLink& own = tail.link;
    (own.previous != nullptr ? own.previous->link.next : first_behind(own.before)) = own.next;
    if (own.next != nullptr) own.next->link.previous = own.previous;
}

void TailOrder::find_before(Tail& tail) {
    tail.link = {};
    tail.link.before = longest(*tail.page, tail.rest.size(), &tail);
    if (tail.link.before != nullptr) return;
    bool is_alone = true;
    for (const Page* page = tail.page; page != nullptr; page = page->parent) {
        if (page != tail.page) {
            if (!page->tails.empty()) {
                tail.link.before = longest(*page, kAny, nullptr);
                return;
            }
            is_alone = is_alone && !page->is_root() && page->n_kept <= 1;
            tail.link.n_alone += is_alone ? 1 : 0;
        }
        // Nothing was linked since, so what was known there is still so.
        if (page != known_.page || page->name != known_.name) continue;
        if (known_.before != nullptr && known_.before->page == tail.page) continue;  // with a longer rest
        tail.link.before = known_.before;
        tail.link.n_alone += is_alone ? known_.n_alone : 0;
        return;
    }
}

void TailOrder::begin(const Page& page) {
    if (page.tails.empty() && !page.is_root()) return;
    known_ = {&page, page.name, page.index, longest(page, kAny, nullptr), 0};
}

void TailOrder::follow(const Page& page) {
    const Page& above = *page.parent;
    if (known_.page != &above || known_.name != above.name) return;
    const bool is_behind_above = known_.before != nullptr && known_.before->page == &above;
    const bool is_alone = !is_behind_above && !above.is_root() && above.n_kept <= 1;
    Tail* here = longest(page, kAny, nullptr);
    known_ = {&page, page.name, page.index, here != nullptr ? here : known_.before,
              here == nullptr && is_alone ? known_.n_alone + 1 : 0};
}

void TailOrder::link(Tail& tail) {
    find_before(tail);
    attach(tail, tail.link.before);
    known_ = {tail.page, tail.page->name, tail.page->index, longest(*tail.page, kAny, nullptr), 0};
    // Most stand at the end of all that is kept: nothing is behind them that could be reached.
    if (tail.page->n_kept == 0 && tail.page->tails.size() == 1) return;
    for (Tail* behind = first_behind(tail.link.before); behind != nullptr;) {
        Tail* next = behind->link.next;
        if (behind != &tail && is_between(tail, *behind)) {
            detach(*behind);
            attach(*behind, &tail);
            const std::int32_t n_between = std::max(0, behind->page->index - tail.page->index - 1);
            behind->link.n_alone = std::min(behind->link.n_alone, n_between);
        }
        behind = next;
    }
}

void TailOrder::unlink(Tail& tail) {
    while (Tail* behind = tail.link.first_behind) {
        const bool is_here = behind->page == tail.page;
        Tail* here = longest(*tail.page, is_here ? behind->rest.size() : kAny, &tail);
        detach(*behind);
        attach(*behind, here != nullptr ? here : tail.link.before);
        const bool was_alone = behind->link.n_alone == behind->page->index - tail.page->index - 1;
        if (is_here || here != nullptr || !was_alone || tail.page->is_root() || tail.page->n_kept > 1) continue;
        behind->link.n_alone += 1 + tail.link.n_alone;
    }
    forget(tail);
    detach(tail);
    tail.link = {};
}

void TailOrder::forget(const Tail& tail) {
    if (known_.before != &tail) return;
    if (Tail* here = longest(*tail.page, kAny, &tail)) {
        known_.before = here;
        return;
    }
    const bool is_here = known_.page == tail.page;
    const bool was_alone = known_.n_alone == known_.index - tail.page->index - 1;
    if (is_here) {
        known_.n_alone = tail.link.n_alone;
    } else if (was_alone && !tail.page->is_root() && tail.page->n_kept <= 1) {
        known_.n_alone += 1 + tail.link.n_alone;
    }
    known_.before = tail.link.before;
}

bool TailOrder::is_right(const Tail& tail) {
    const Tail* before = tail.link.before;
    for (const Page* page = tail.page; page != nullptr; page = page->parent) {
        for (const Tail& other : page->tails) {
            if (&other == before) return page != tail.page || other.rest.size() < tail.rest.size();
        }
    }
    return before == nullptr;
}

double n_saved_pages(const Tail& tail) {
    auto n_rest = static_cast<double>(tail.rest.size());
    const Tail* before = tail.link.before;
    if (before != nullptr && before->page == tail.page) n_rest -= static_cast<double>(before->rest.size());
    return n_rest / kPageSize + (tail.page->index - page_before(tail));
}

std::int32_t n_freed_pages(const Tail& tail) {
    const bool is_alone = !tail.page->is_root() && tail.page->n_kept == 0 && tail.page->tails.size() == 1;
    return is_alone ? 1 + tail.link.n_alone : 0;
}

}  // namespace luce::memory
