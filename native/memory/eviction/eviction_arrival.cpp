#include "memory/eviction/eviction_arrival.h"

namespace luce::memory {
namespace {

// A request that follows a text at least so far has not left its conversation.
constexpr double kSameConversation = 0.9;

}  // namespace

ConversationRef arrive(EvictionPolicy& policy, std::span<Page* const> known, std::size_t n_pages) {
    const EvictionCosts::Timed timed(policy.costs());
    if (known.empty() || !policy.learns()) return policy.begin();
    Page& last = *known.back();
    if (last.ended) {
        ConversationRef conversation = std::move(last.ended);
        policy.on_return(*conversation);
        return conversation;
    }
    const ConversationRef owner = last.owner;
    if (!owner) return policy.begin();
    if (static_cast<double>(known.size()) >= kSameConversation * owner->n_pages) return policy.on_fork(*owner);
    ConversationRef conversation = policy.begin();
    // Where several texts go on, one more means nothing.
    if (last.n_kept < 2 && known.size() < n_pages) policy.on_departed(*owner);
    return conversation;
}

}  // namespace luce::memory
