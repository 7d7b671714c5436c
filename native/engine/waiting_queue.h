// WaitingQueue: requests that were accepted and have no lane yet: higher priority first, then first come, first served.
// Owns them until they are taken. Its owner bounds it.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "engine/decoder.h"
#include "engine/request.h"

namespace luce::engine {

struct WaitingRequest {
    Request request;
    std::unique_ptr<TokenSampler> sampler;
    std::shared_ptr<memory::KvCacheManager::Fetch> fetch;  // what it waits for from disk; null: nothing
    bool has_asked = false;                                // whether fetch was looked into
};

class WaitingQueue {
public:
    bool is_empty() const { return waiting_.empty(); }
    std::size_t size() const { return waiting_.size(); }

    void push(WaitingRequest waiting) {
        auto at = waiting_.end();
        while (at != waiting_.begin() && std::prev(at)->request.priority < waiting.request.priority) --at;
        waiting_.insert(at, std::move(waiting));
    }

    // REQUIRES: !is_empty()
    const Request& front() const { return waiting_.front().request; }
    WaitingRequest& first() { return waiting_.front(); }
    const WaitingRequest& first() const { return waiting_.front(); }

    // REQUIRES: !is_empty()
    WaitingRequest pop() {
        WaitingRequest first = std::move(waiting_.front());
        waiting_.pop_front();
        return first;
    }

    std::optional<WaitingRequest> remove(RequestKey key) {
        for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
            if (it->request.key != key) continue;
            WaitingRequest removed = std::move(*it);
            waiting_.erase(it);
            return removed;
        }
        return std::nullopt;
    }

private:
    std::list<WaitingRequest> waiting_;
};

}  // namespace luce::engine
