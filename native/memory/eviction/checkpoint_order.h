// CheckpointOrder: which checkpoint stands before which on the same text, so that what a checkpoint saves (the
// computation between the two) is known without a walk along its pages. Knows no worth and no bytes.
//
// Before a checkpoint stands the one with the next shorter rest behind the same page, or else the one with the longest
// rest behind the nearest page above that has any (of equal ones, either). Where a page between has left all memory,
// what is behind it cannot be reached, and may keep one further up.
#pragma once

#include <cstdint>

#include "memory/tiers/blob.h"

namespace luce::memory {

struct Page;
struct Checkpoint;

// A checkpoint's place among the others; null where there is none.
struct CheckpointLink {
    Checkpoint* before = nullptr;
    Checkpoint* first_behind = nullptr;  // of those before which it stands; then by next
    Checkpoint* next = nullptr;
    Checkpoint* previous = nullptr;
    std::int32_t n_alone = 0;  // pages above its own, up to the checkpoint before, on which no other text has gone on
};

class CheckpointOrder {
public:
    // A checkpoint has been added to its page, or is about to be removed from it.
    void link(Checkpoint& checkpoint);
    void unlink(Checkpoint& checkpoint);

    // A text goes on behind this page, whose checkpoints are all linked; and then page by page. Saves the walk up from
    // its next checkpoint.
    void begin(const Page& page);
    void follow(const Page& page);

    // Whether what stands before it is still there, and on its text.
    static bool is_right(const Checkpoint& checkpoint);

private:
    // Where the last checkpoint was linked, which may be gone again, or a text has come to since: its next checkpoint
    // is a few pages further on. By its name, too: the page may be gone, and another in its place.
    struct Known {
        const Page* page = nullptr;
        PageName name;
        std::int32_t index = -1;
        Checkpoint* before = nullptr;  // the nearest behind or above the page
        std::int32_t n_alone = 0;      // pages above the page, as for a checkpoint's link
    };

    void find_before(Checkpoint& checkpoint);
    void forget(const Checkpoint& checkpoint);
    Checkpoint*& first_behind(Checkpoint* checkpoint);
    void attach(Checkpoint& checkpoint, Checkpoint* before);
    void detach(Checkpoint& checkpoint);

    Known known_;
    Checkpoint* first_ = nullptr;  // of those before which none stands
};

// Pages' worth of tokens between it and the checkpoint before.
double n_saved_pages(const Checkpoint& checkpoint);

// Pages that are of no use without it, when no text goes on behind it.
std::int32_t n_freed_pages(const Checkpoint& checkpoint);

}  // namespace luce::memory
