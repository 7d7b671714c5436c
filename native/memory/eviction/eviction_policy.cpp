#include "memory/eviction/eviction_policy.h"

#include <algorithm>
#include <cmath>

namespace luce::memory {
namespace {

constexpr float kSmoothing = 0.4F;  // of the mean of log2(gap): about the last four gaps
// Requests between two looks at what was counted: the curves move ever more slowly.
std::uint64_t relearn_every(std::uint64_t n_requests) { return n_requests < 256 ? 8 : n_requests < 1024 ? 32 : 128; }

constexpr std::size_t kMaxWatched = 1 << 10;  // conversations that teach; older ones no longer count as idle

}  // namespace

void ConversationRef::reset() {
    Conversation* conversation = std::exchange(conversation_, nullptr);
    if (conversation != nullptr && --conversation->n_refs == 0) conversation->policy->forget(*conversation);
}

EvictionPolicy::EvictionPolicy(const Clock& clock, EvictionKind kind) : clock_(clock), kind_(kind) {
    nobody_.policy = this;
    nobody_.n_refs = 1;
    nobody_.last_use_s = -std::numeric_limits<double>::infinity();
}

Conversation& EvictionPolicy::allocate() {
    if (free_.empty()) return conversations_.emplace_back();
    Conversation& conversation = *free_.back();
    free_.pop_back();
    return conversation;
}

void EvictionPolicy::forget(Conversation& conversation) {
    if (conversation.is_watched) unwatch(conversation);
    free_.push_back(&conversation);
}

ConversationRef EvictionPolicy::begin() {
    Conversation& conversation = allocate();
    conversation = {};
    conversation.policy = this;
    conversation.last_use_s = now_s();
    watch(conversation);
    count_request();
    return ConversationRef(conversation);
}

void EvictionPolicy::on_return(Conversation& conversation) {
    const double now = now_s();
    const double gap_s = age_s(conversation, now);
    const std::size_t bucket = ReuseModel::bucket_of(gap_s);
    if (conversation.is_watched && conversation.n_running == 0) {
        settle(conversation, bucket + 1);
        reuse_.count_returned(conversation.interval, bucket);
    }
    const auto gap = static_cast<float>(std::log2(std::max(gap_s, 0.5)));
    conversation.log2_gap =
        conversation.has_gap ? conversation.log2_gap + kSmoothing * (gap - conversation.log2_gap) : gap;
    conversation.has_gap = true;
    conversation.interval = ReuseModel::interval_of(conversation.log2_gap);
    conversation.last_use_s = now;
    conversation.n_settled = 0;
    watch(conversation);
    count_request();
}

ConversationRef EvictionPolicy::on_fork(Conversation& conversation) {
    const double left_s = conversation.last_use_s;
    on_return(conversation);
    Conversation& next = allocate();
    next = {};
    next.policy = this;
    next.last_use_s = conversation.last_use_s;
    next.log2_gap = conversation.log2_gap;
    next.has_gap = true;
    next.interval = conversation.interval;
    conversation.last_use_s = left_s;
    conversation.interval = ReuseInterval::departed;
    conversation.n_settled = ReuseModel::bucket_of(next.last_use_s - left_s);
    watch(next);
    return ConversationRef(next);
}

void EvictionPolicy::on_departed(Conversation& conversation) {
    if (conversation.interval == ReuseInterval::departed) return;
    if (conversation.is_watched) settle(conversation, ReuseModel::bucket_of(age_s(conversation, now_s())) + 1);
    conversation.interval = ReuseInterval::departed;
}

void EvictionPolicy::on_run(Conversation& conversation) { ++conversation.n_running; }

void EvictionPolicy::on_end(Conversation& conversation, std::int32_t n_pages) {
    conversation.last_use_s = now_s();
    conversation.n_pages = n_pages;
    --conversation.n_running;
}

double EvictionPolicy::priority(const Conversation& conversation, double now_s) const {
    const double age = age_s(conversation, now_s);
    if (kind_ == EvictionKind::lru) return conversation.last_use_s - now_s;
    if (age > reuse_.old_age_s()) return -age;
    // Among equals the older one.
    return reuse_.priority(conversation.interval, age) - 1e-12 * age;
}

double EvictionPolicy::age_s(const Conversation& conversation, double now_s) const {
    return std::max(0.0, now_s - conversation.last_use_s);
}

void EvictionPolicy::watch(Conversation& conversation) {
    if (kind_ == EvictionKind::lru) return;
    if (conversation.is_watched) {
        watched_.splice(watched_.begin(), watched_, conversation.watch);
        return;
    }
    watched_.push_front(&conversation);
    conversation.watch = watched_.begin();
    conversation.is_watched = true;
    if (watched_.size() > kMaxWatched) unwatch(*watched_.back());
}

void EvictionPolicy::unwatch(Conversation& conversation) {
    watched_.erase(conversation.watch);
    conversation.is_watched = false;
}

// Counts the conversation as having been idle through the first n buckets.
void EvictionPolicy::settle(Conversation& conversation, std::size_t n_buckets) {
    for (; conversation.n_settled < n_buckets; ++conversation.n_settled) {
        reuse_.count_reached(conversation.interval, conversation.n_settled);
    }
}

// Those who have not come back count, too, or every idle age would look hopeful.
void EvictionPolicy::count_request() {
    if (kind_ == EvictionKind::lru) return;
    ++n_requests_;
    if (n_requests_ % relearn_every(n_requests_) != 0) return;
    const double now = now_s();
    for (Conversation* conversation : watched_) {
        if (conversation->n_running > 0) continue;
        settle(*conversation, ReuseModel::bucket_of(age_s(*conversation, now)));
    }
    reuse_.relearn();
}

}  // namespace luce::memory
