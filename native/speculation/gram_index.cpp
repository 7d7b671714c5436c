#include "speculation/gram_index.h"

#include <algorithm>

namespace luce::speculation {

namespace {

constexpr std::size_t kFewestBuckets = 256;
constexpr std::size_t kPlacesPerBucket = 2;  // more, and the table grows

// For a text with so many places: room for half as many again before the table has to grow.
std::size_t n_buckets_for(std::size_t n_places) { return std::max(kFewestBuckets, n_places - n_places / 4); }

}  // namespace

std::size_t GramIndex::bucket_of(std::span<const Token> text, std::size_t place) const {
    std::uint64_t hash = 0;
    for (const Token token : text.subspan(place - n_gram_, n_gram_)) {
        hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 32U;
    }
    // The upper bits choose the bucket: as good as a remainder, and cheaper.
    return static_cast<std::size_t>(((hash & 0xFFFFFFFFU) * heads_.size()) >> 32U);
}

void GramIndex::add(std::span<const Token> text, Place place) {
    Place& head = heads_[bucket_of(text, place)];
    links_[place] = head;
    head = place;
}

void GramIndex::rebuild(std::span<const Token> text) {
    heads_ = {};  // before the new table is made: never both at once
    heads_.resize(n_buckets_for(text.size()));
    for (std::size_t place = n_gram_; place < links_.size(); ++place) add(text, static_cast<Place>(place));
}

void GramIndex::extend(std::span<const Token> text, std::size_t n) {
    if (n >= heads_.size() * kPlacesPerBucket) rebuild(text);
    while (links_.size() <= n) {
        const std::size_t place = links_.size();
        links_.push_back(0);
        if (place >= n_gram_) add(text, static_cast<Place>(place));
    }
}

Place GramIndex::latest(std::span<const Token> text) const {
    if (text.size() < n_gram_ || heads_.empty()) return 0;
    if (text.size() < links_.size()) return links_[text.size()];
    return heads_[bucket_of(text, text.size())];
}

}  // namespace luce::speculation
