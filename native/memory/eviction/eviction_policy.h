// EvictionPolicy: what the pages of each conversation are worth keeping, by when it was asked for last and how such
// conversations have behaved so far. Knows conversations and time: no pages, no bytes, no tree. Each page belongs to
// the conversation that used it last; the queues (eviction_queue.h) choose by what that one is worth.
//
// A conversation is a text that grows from request to request. It lives for as long as somebody refers to it, which
// pages do that nothing but the tree remembers, too: those that come back after their pages are gone teach just as
// much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <list>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "memory/eviction/reuse_model.h"

namespace luce::memory {

struct Page;
class EvictionPolicy;

struct Conversation {
    EvictionPolicy* policy = nullptr;
    std::uint32_t n_refs = 0;

    double last_use_s = 0;     // its last request's end, or begin while it runs
    std::int32_t n_pages = 0;  // of its last request's text
    std::int32_t n_running = 0;

    float log2_gap = 0;  // mean of the gaps between its requests, smoothed
    bool has_gap = false;
    ReuseInterval interval = ReuseInterval::unknown;
    std::size_t n_settled = 0;  // buckets of this idle time that the curves have counted
    bool is_watched = false;    // counted at all
    std::list<Conversation*>::iterator watch;

    // Its pages that could be evicted, by queue: PageQueue's own.
    struct Candidates {
        Page* first = nullptr;
        std::size_t place = 0;
    };
    Candidates candidates[3];
};

// Holds a conversation; may be empty. REQUIRES: the policy outlives it.
class ConversationRef {
public:
    ConversationRef() = default;
    explicit ConversationRef(Conversation& conversation) : conversation_(&conversation) { ++conversation.n_refs; }
    ConversationRef(const ConversationRef& other) : conversation_(other.conversation_) {
        if (conversation_ != nullptr) ++conversation_->n_refs;
    }
    ConversationRef(ConversationRef&& other) noexcept : conversation_(std::exchange(other.conversation_, nullptr)) {}
    ConversationRef& operator=(ConversationRef other) noexcept {
        std::swap(conversation_, other.conversation_);
        return *this;
    }
    ~ConversationRef() { reset(); }

    void reset();
    Conversation* get() const { return conversation_; }
    Conversation* operator->() const { return conversation_; }
    Conversation& operator*() const { return *conversation_; }
    explicit operator bool() const { return conversation_ != nullptr; }

private:
    Conversation* conversation_ = nullptr;
};

// What choosing costs, for benchmarks: measured only where a stopwatch is given.
struct EvictionCosts {
    const Clock* stopwatch = nullptr;
    double deciding_s = 0;
    std::uint64_t n_choices = 0;  // among conversations or checkpoints
    std::uint64_t n_moves = 0;    // into or out of a queue
    std::uint64_t n_timed = 0;    // spans that deciding_s is the sum of

    class Timed {
    public:
        explicit Timed(EvictionCosts& costs) : costs_(costs), started_s_(now_s()) {}
        ~Timed() {
            costs_.deciding_s += now_s() - started_s_;
            ++costs_.n_timed;
        }
        Timed(const Timed&) = delete;
        Timed& operator=(const Timed&) = delete;

    private:
        double now_s() const { return costs_.stopwatch != nullptr ? costs_.stopwatch->now_s() : 0; }
        EvictionCosts& costs_;
        double started_s_;
    };
};

// lru: the baseline to measure by; every request is a conversation of its own and the oldest goes first.
enum class EvictionKind : std::uint8_t { learned, lru };

class EvictionPolicy {
public:
    EvictionPolicy(const Clock& clock, EvictionKind kind);
    EvictionPolicy(const EvictionPolicy&) = delete;
    EvictionPolicy& operator=(const EvictionPolicy&) = delete;

    bool learns() const { return kind_ == EvictionKind::learned; }
    double now_s() const { return clock_.now_s(); }

    // A conversation's first request.
    ConversationRef begin();

    // Its next request, whether its pages are still present or not.
    void on_return(Conversation& conversation);

    // Its next request, when that leaves the text shortly before its end (a dropped thought, a retry, an edit): the
    // same conversation on another path. What it leaves behind stays `conversation`'s, departed; the interval goes with
    // the new.
    ConversationRef on_fork(Conversation& conversation);

    // Another request departed from its text (an edit, a compaction): what lies behind is seldom asked for again.
    void on_departed(Conversation& conversation);

    // A request of it runs, and has ended with so many pages.
    void on_run(Conversation& conversation);
    void on_end(Conversation& conversation, std::int32_t n_pages);

    // Expected hits per page and second of keeping: the lowest goes first. Below zero, the oldest first, once it is
    // idle for longer than nearly all who ever came back: with little pressure that is least recently used, which
    // cannot be beaten then, only lost to.
    double priority(const Conversation& conversation, double now_s) const;

    // Owns the pages of which there is no hope; worth less than anything.
    Conversation& nobody() { return nobody_; }

    EvictionCosts& costs() { return costs_; }
    std::size_t n_conversations() const { return conversations_.size() - free_.size(); }

private:
    friend class ConversationRef;

    Conversation& allocate();
    void forget(Conversation& conversation);
    void watch(Conversation& conversation);
    void unwatch(Conversation& conversation);
    void settle(Conversation& conversation, std::size_t n_buckets);
    void count_request();
    double age_s(const Conversation& conversation, double now_s) const;

    const Clock& clock_;
    EvictionKind kind_;
    ReuseModel reuse_;
    std::deque<Conversation> conversations_;  // never move
    std::vector<Conversation*> free_;
    std::list<Conversation*> watched_;  // used last in front
    Conversation nobody_;
    std::uint64_t n_requests_ = 0;
    EvictionCosts costs_;
};

}  // namespace luce::memory
