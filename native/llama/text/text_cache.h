// TextCache: what was made of texts lately, so that a conversation's next prompt costs what is new in it. For what
// follows from a text alone. A text is found only under the salt that it came with, so that clients who are kept apart
// learn nothing of each other's. Knows nothing of what is made. Any thread may use it.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace luce::llama {

// NBytes: how much memory a value takes.
template <typename Value, auto NBytes>
class TextCache {
public:
    // Any thread may call it.
    using Make = std::function<Value(std::string_view)>;

    // The cache for the texts of one salt, which must outlive it.
    class Salted {
    public:
        Salted(TextCache& cache, std::string_view salt) : cache_(cache), salt_(salt) {}
        Value get(std::string_view text) const { return cache_.get(text, salt_); }
        std::string_view salt() const { return salt_; }

    private:
        TextCache& cache_;
        std::string_view salt_;
    };

    // max_bytes: of texts and values together; the longest unused leave first.
    TextCache(Make make, size_t max_bytes) : make_(std::move(make)), max_bytes_(max_bytes) {}

    Value get(std::string_view text, std::string_view salt = {}) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            const auto found = by_text_.find({salt, text});
            if (found != by_text_.end()) {
                entries_.splice(entries_.begin(), entries_, found->second);
                return found->second->value;
            }
        }
        Value value = make_(text);
        insert({salt, text}, value);
        return value;
    }

    size_t n_bytes() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return n_bytes_;
    }

private:
    struct Key {
        std::string_view salt;
        std::string_view text;
        bool operator==(const Key&) const = default;
    };

    struct HashOfKey {
        size_t operator()(const Key& key) const {
            const std::hash<std::string_view> hash;
            return hash(key.text) ^ 31 * hash(key.salt);
        }
    };

    struct Entry {
        std::string salt;
        std::string text;
        Value value;

        Key key() const { return {salt, text}; }
        size_t n_bytes() const { return salt.size() + text.size() + NBytes(value); }
    };

    void insert(const Key& key, const Value& value) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (by_text_.count(key) > 0) {
            return;  // another thread was faster
        }
        entries_.push_front({std::string(key.salt), std::string(key.text), value});
        by_text_.emplace(entries_.front().key(), entries_.begin());
        n_bytes_ += entries_.front().n_bytes();
        while (n_bytes_ > max_bytes_) {
            n_bytes_ -= entries_.back().n_bytes();
            by_text_.erase(entries_.back().key());
            entries_.pop_back();
        }
    }

    const Make make_;
    const size_t max_bytes_;
    mutable std::mutex mutex_;
    std::list<Entry> entries_;  // the latest used first
    std::unordered_map<Key, typename std::list<Entry>::iterator, HashOfKey> by_text_;
    size_t n_bytes_ = 0;
};

}  // namespace luce::llama
