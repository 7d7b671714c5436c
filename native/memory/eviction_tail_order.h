// TailOrder: which tail stands before which on the same text, so that what a tail saves (the computation between the
// two) is known without a walk along its pages. Knows no worth and no bytes.
//
// Before a tail stands the one with the next shorter rest behind the same page, or else the one with the longest rest
// behind the nearest page above that has any (of equal ones, either). Where a page between has left all memory, what is
// behind it cannot be reached, and may keep one further up.
#pragma once

#include <cstdint>

#include "memory/blob.h"

namespace luce::memory {

struct Page;
struct Tail;

// A tail's place among the others; null where there is none.
struct TailLink {
    Tail* before = nullptr;
    Tail* first_behind = nullptr;  // of those before which it stands; then by next
    Tail* next = nullptr;
    Tail* previous = nullptr;
    std::int32_t n_alone = 0;  // pages above its own, up to the tail before, on which no other text has gone on
};

class TailOrder {
public:
    // A tail has been added to its page, or is about to be removed from it.
    void link(Tail& tail);
    void unlink(Tail& tail);

    // A text goes on behind this page, whose tails are all linked; and then page by page. Saves the walk up from its
    // next tail.
    void begin(const Page& page);
    void follow(const Page& page);

    // Whether what stands before it is still there, and on its text.
    static bool is_right(const Tail& tail);

private:
    // Where the last tail was linked, which may be gone again, or a text has come to since: its next tail is a few
    // pages further on. By its name, too: the page may be gone, and another in its place.
    struct Known {
        const Page* page = nullptr;
        PageName name;
        std::int32_t index = -1;
        Tail* before = nullptr;    // the nearest behind or above the page
        std::int32_t n_alone = 0;  // pages above the page, as for a tail's link
    };

    void find_before(Tail& tail);
    void forget(const Tail& tail);
    Tail*& first_behind(Tail* tail);
    void attach(Tail& tail, Tail* before);
    void detach(Tail& tail);

    Known known_;
    Tail* first_ = nullptr;  // of those before which none stands
};

// Pages' worth of tokens between it and the tail before.
double n_saved_pages(const Tail& tail);

// Pages that are of no use without it, when no text goes on behind it.
std::int32_t n_freed_pages(const Tail& tail);

}  // namespace luce::memory
