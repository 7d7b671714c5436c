#include "memory/eviction/eviction_queue.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "memory/pages/prefix_tree.h"

namespace luce::memory {
namespace {

constexpr double kChoiceHolds_s = 0.5;  // the order of conversations changes slowly, evictions come in bursts

// Of the end of a text's worth, what a checkpoint in its middle is worth: it helps only when a prompt departs just
// there.
constexpr double kMiddleUse = 0.08;

// Texts depart there, or did.
bool is_fork(CheckpointKind kind) { return kind == CheckpointKind::departure || kind == CheckpointKind::turn; }

// Whether texts have gone on differently from it: what stands behind the page where they branch, and what stands behind
// the one before if nothing does. Another text is as likely to come back to it as a text's own next turn to its end.
bool is_shared(const Checkpoint& checkpoint) {
    const Page* page = checkpoint.page;
    if (is_fork(checkpoint.kind) || page->n_kept > 1) return true;
    if (page->children.size() != 1) return false;
    const Page& next = *page->children.begin()->second;
    return next.n_kept > 1 && next.checkpoints.empty();
}

std::size_t draw(std::uint64_t& lot, std::size_t n) {
    lot = lot * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::size_t>((lot >> 33) % n);
}

}  // namespace

QueueLink& PageQueue::link(Page& page) const { return page.queued[kind_]; }

const Conversation* PageQueue::conversation_of(const Page& page) const { return page.queued[kind_].of; }

void PageQueue::move(Page& page, Conversation* of) {
    QueueLink& own = link(page);
    if (own.of != nullptr) {
        if (&page == in_hand_) {
            in_hand_ = nullptr;
        } else {
            take_out(page);
        }
        --size_;
    }
    own = {of, nullptr, nullptr};
    if (of == nullptr) return;
    put_down();
    in_hand_ = &page;
    ++size_;
}

void PageQueue::take_out(Page& page) {
    ++policy_.costs().n_moves;
    const QueueLink& own = link(page);
    Conversation::Candidates& left = own.of->candidates[kind_];
    if (own.before != nullptr) {
        link(*own.before).after = own.after;
    } else {
        left.first = own.after;
    }
    if (own.after != nullptr) link(*own.after).before = own.before;
    if (left.first != nullptr) return;
    conversations_[left.place] = conversations_.back();
    conversations_[left.place]->candidates[kind_].place = left.place;
    conversations_.pop_back();
}

void PageQueue::put_down() {
    if (in_hand_ == nullptr) return;
    ++policy_.costs().n_moves;
    Page& page = *std::exchange(in_hand_, nullptr);
    QueueLink& own = link(page);
    // In front: when a page has gone, the one before it on the same text is the next.
    Conversation::Candidates& joined = own.of->candidates[kind_];
    if (joined.first == nullptr) {
        joined.place = conversations_.size();
        conversations_.push_back(own.of);
    } else {
        link(*joined.first).before = &page;
    }
    own.after = joined.first;
    joined.first = &page;
}

Page& PageQueue::lowest(double now_s) {
    assert(!empty());
    const Conversation* of_hand = in_hand_ != nullptr ? link(*in_hand_).of : nullptr;
    if (of_hand == &policy_.nobody()) return *in_hand_;
    if (Page* hopeless = policy_.nobody().candidates[kind_].first) return *hopeless;
    const bool holds =
        chosen_ != nullptr && chosen_->last_use_s == chosen_last_use_s_ && now_s - chosen_at_s_ < kChoiceHolds_s;
    if (holds && of_hand == chosen_) return *in_hand_;
    put_down();
    if (!holds || chosen_->candidates[kind_].first == nullptr) {
        chosen_ = &choose(now_s);
        chosen_last_use_s_ = chosen_->last_use_s;
        chosen_at_s_ = now_s;
    }
    return *chosen_->candidates[kind_].first;
}

Conversation& PageQueue::choose(double now_s) {
    const EvictionCosts::Timed timed(policy_.costs());
    ++policy_.costs().n_choices;
    const std::size_t n = conversations_.size();
    const bool draws = policy_.learns() && n > kMaxCompared;
    Conversation* lowest = nullptr;
    double lowest_priority = 0;
    for (std::size_t i = 0; i < (draws ? kMaxCompared : n); ++i) {
        Conversation* candidate = conversations_[draws ? draw(lot_, n) : i];
        const double priority = policy_.priority(*candidate, now_s);
        if (lowest != nullptr && priority >= lowest_priority) continue;
        lowest = candidate;
        lowest_priority = priority;
    }
    return *lowest;
}

std::vector<Page*> PageQueue::all() const {
    std::vector<Page*> pages;
    if (in_hand_ != nullptr) pages.push_back(in_hand_);
    for (const Conversation* conversation : conversations_) {
        for (Page* page = conversation->candidates[kind_].first; page != nullptr; page = link(*page).after) {
            pages.push_back(page);
        }
    }
    return pages;
}

void CheckpointQueue::add(Checkpoint& checkpoint) {
    if (!has_state_) return;
    const EvictionCosts::Timed timed(policy_.costs());
    order_.link(checkpoint);
}

void CheckpointQueue::remove(Checkpoint& checkpoint) {
    if (!has_state_) return;
    const EvictionCosts::Timed timed(policy_.costs());
    order_.unlink(checkpoint);
}

void CheckpointQueue::begin(const Page& page) {
    if (has_state_) order_.begin(page);
}

void CheckpointQueue::follow(const Page& page) {
    if (!has_state_) return;
    ++policy_.costs().n_moves;  // as quick as one
    order_.follow(page);
}

void CheckpointQueue::set(Checkpoint& checkpoint, bool is_candidate) {
    if (checkpoint.is_queued == is_candidate) return;
    checkpoint.is_queued = is_candidate;
    if (is_candidate) {
        checkpoint.place = checkpoints_.size();
        checkpoints_.push_back(&checkpoint);
    } else {
        checkpoints_[checkpoint.place] = checkpoints_.back();
        checkpoints_[checkpoint.place]->place = checkpoint.place;
        checkpoints_.pop_back();
    }
}

double CheckpointQueue::priority_per_byte(const Checkpoint& checkpoint, double use, double now_s) const {
    const double priority = policy_.priority(checkpoint.owner ? *checkpoint.owner : policy_.nobody(), now_s);
    const auto unit = static_cast<double>(std::max<std::size_t>(1, page_bytes_));
    if (!policy_.learns()) return priority / unit;
    if (priority < 0) return priority * (2 - use) / unit;
    const double n_bytes = static_cast<double>(std::max<std::size_t>(1, checkpoint.data->n_bytes()));
    const double n_saved =
        has_state_ ? n_saved_pages(checkpoint) : static_cast<double>(checkpoint.rest.size()) / kPageSize;
    const double n_freed = has_state_ && use >= 1 ? n_freed_pages(checkpoint) : 0;
    return priority * use * n_saved / (n_bytes + n_freed * static_cast<double>(page_bytes_));
}

double CheckpointQueue::priority_per_byte(const Checkpoint& checkpoint, double now_s) const {
    const bool is_last = checkpoint.page->n_kept == 0 && &checkpoint == &checkpoint.page->checkpoints.back();
    return priority_per_byte(checkpoint, is_last || is_shared(checkpoint) ? 1 : kMiddleUse, now_s);
}

double CheckpointQueue::priority_of_new(const Checkpoint& checkpoint, double now_s) const {
    const bool is_end = checkpoint.kind == CheckpointKind::prompt_end || checkpoint.kind == CheckpointKind::answer_end;
    return priority_per_byte(checkpoint, is_end || is_fork(checkpoint.kind) ? 1 : kMiddleUse, now_s);
}

std::optional<CheckpointQueue::Lowest> CheckpointQueue::lowest(double now_s) {
    const std::size_t n = checkpoints_.size();
    if (n == 0) return std::nullopt;
    const EvictionCosts::Timed timed(policy_.costs());
    ++policy_.costs().n_choices;
    const bool draws = policy_.learns() && n > kMaxCompared;
    Lowest lowest;
    for (std::size_t i = 0; i < (draws ? kMaxCompared : n); ++i) {
        Checkpoint* checkpoint = checkpoints_[draws ? draw(lot_, n) : i];
        const double priority = priority_per_byte(*checkpoint, now_s);
        if (lowest.checkpoint == nullptr || priority < lowest.priority_per_byte) lowest = {checkpoint, priority};
    }
    return lowest;
}

}  // namespace luce::memory
