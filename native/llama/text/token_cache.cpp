// TokenCache: see the header.
#include "llama/text/token_cache.h"

#include <utility>

namespace luce::llama {

TokenCache::TokenCache(Tokenize tokenize, size_t max_bytes) : tokenize_(std::move(tokenize)), max_bytes_(max_bytes) {}

std::vector<llama_token> TokenCache::tokenize(std::string_view text) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = by_text_.find(text);
        if (found != by_text_.end()) {
            entries_.splice(entries_.begin(), entries_, found->second);
            return found->second->ids;
        }
    }
    std::vector<llama_token> ids = tokenize_(text);
    insert(text, ids);
    return ids;
}

void TokenCache::insert(std::string_view text, const std::vector<llama_token>& ids) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (by_text_.count(text) > 0) {
        return;  // another thread was faster
    }
    entries_.push_front({std::string(text), ids});
    by_text_.emplace(entries_.front().text, entries_.begin());
    n_bytes_ += entries_.front().n_bytes();
    while (n_bytes_ > max_bytes_) {
        n_bytes_ -= entries_.back().n_bytes();
        by_text_.erase(entries_.back().text);
        entries_.pop_back();
    }
}

size_t TokenCache::n_bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_bytes_;
}

}  // namespace luce::llama
