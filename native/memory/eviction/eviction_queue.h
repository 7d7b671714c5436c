// The queues of what could be evicted: pages that nothing needs (one queue for the pool, one for the host, one of those
// that would have to be copied first) and checkpoints. They say which is worth least; PageCache decides what could be
// evicted at all, and evicts.
//
// Pages wait by conversation, so that choosing looks at conversations, not at pages: the one that is worth least gives
// its pages, from the ends of its texts up, until it has no more. Where there are very many, some are drawn by lot and
// the least of them goes (as in LHD and in Redis): exact up to kMaxCompared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/eviction/checkpoint_order.h"
#include "memory/eviction/eviction_policy.h"

namespace luce::memory {

struct Checkpoint;

inline constexpr std::size_t kMaxCompared = 256;

enum class QueueKind : std::uint8_t { pool, host, uncopied };

// A page's place in one queue.
struct QueueLink {
    Conversation* of = nullptr;  // whose candidate it is; null: not queued
    Page* before = nullptr;
    Page* after = nullptr;
};

class PageQueue {
public:
    PageQueue(EvictionPolicy& policy, QueueKind kind) : policy_(policy), kind_(static_cast<std::size_t>(kind)) {}

    // Queue the page as one of `of`, or take it out (null).
    void set(Page& page, Conversation* of) {
        if (link(page).of != of) move(page, of);
    }
    const Conversation* conversation_of(const Page& page) const;

    // The first of its conversation's. REQUIRES: queued.
    void set_first(Page& page) { move(page, link(page).of); }

    bool empty() const { return size_ == 0; }
    std::size_t size() const { return size_; }

    // Worth least. REQUIRES: not empty.
    Page& lowest(double now_s);

    std::vector<Page*> all() const;

private:
    QueueLink& link(Page& page) const;
    void move(Page& page, Conversation* of);
    void take_out(Page& page);
    void put_down();
    Conversation& choose(double now_s);

    EvictionPolicy& policy_;
    std::size_t kind_;
    std::vector<Conversation*> conversations_;  // that have candidates, the one in hand left out
    // Queued last and linked nowhere yet: most are asked for at once (the page before one that has gone) or taken back.
    Page* in_hand_ = nullptr;
    std::size_t size_ = 0;
    Conversation* chosen_ = nullptr;
    double chosen_last_use_s_ = 0;
    double chosen_at_s_ = 0;
    std::uint64_t lot_ = 1;
};

class CheckpointQueue {
public:
    // page_bytes: of a page's rows. has_state: without a checkpoint the pages before it are of no use.
    CheckpointQueue(EvictionPolicy& policy, std::size_t page_bytes, bool has_state)
        : policy_(policy), page_bytes_(page_bytes), has_state_(has_state) {}

    // A checkpoint has been put behind its page, or is about to leave it. REQUIRES: to leave, no candidate.
    void add(Checkpoint& checkpoint);
    void remove(Checkpoint& checkpoint);

    // A text goes on behind this page, and then page by page: its next checkpoint's place is known the sooner.
    void begin(const Page& page);
    void follow(const Page& page);

    void set(Checkpoint& checkpoint, bool is_candidate);
    std::size_t size() const { return checkpoints_.size(); }
    bool is_in_order(const Checkpoint& checkpoint) const {
        return !has_state_ || CheckpointOrder::is_right(checkpoint);
    }

    struct Lowest {
        Checkpoint* checkpoint = nullptr;
        double priority_per_byte = 0;
    };
    std::optional<Lowest> lowest(double now_s);

    // What keeping it is worth. A page's: policy.priority() / page_bytes.
    double priority_per_byte(const Checkpoint& checkpoint, double now_s) const;

    // Of one that has just been taken: its text may go on.
    double priority_of_new(const Checkpoint& checkpoint, double now_s) const;

    std::vector<Checkpoint*> all() const { return checkpoints_; }

private:
    double priority_per_byte(const Checkpoint& checkpoint, double use, double now_s) const;

    EvictionPolicy& policy_;
    std::size_t page_bytes_;
    bool has_state_;
    CheckpointOrder order_;
    std::vector<Checkpoint*> checkpoints_;
    std::uint64_t lot_ = 1;
};

}  // namespace luce::memory
