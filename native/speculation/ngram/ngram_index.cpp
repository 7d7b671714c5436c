#include "speculation/ngram/ngram_index.h"

#include <algorithm>

namespace luce::speculation {

namespace {

constexpr std::size_t kFewestBuckets = 256;
constexpr std::size_t kPlacesPerBucket = 2;  // more, and the table grows
constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15U;
constexpr std::uint64_t kMixer = 0xD6E8FEB86659FD93U;

std::uint64_t term_of(Token token) { return static_cast<std::uint32_t>(token) + std::uint64_t{1}; }

// For a text with so many places: room for half as many again before the table has to grow.
std::size_t n_buckets_for(std::size_t n_places) { return std::max(kFewestBuckets, n_places - n_places / 4); }

}  // namespace

NgramIndex::NgramIndex(std::size_t n_gram) : ngram_size_(n_gram) {
    for (std::size_t i = 0; i < n_gram; ++i) leaving_ *= kBase;
}

// A polynomial in the ngram's tokens: so the next place's comes from this one's (Karp and Rabin, 1987).
std::uint64_t NgramIndex::hash_of(std::span<const Token> text, std::size_t place) const {
    std::uint64_t hash = 0;
    for (const Token token : text.subspan(place - ngram_size_, ngram_size_)) hash = hash * kBase + term_of(token);
    return hash;
}

std::uint64_t NgramIndex::next_hash(std::span<const Token> text, std::size_t place, std::uint64_t hash) const {
    return hash * kBase + term_of(text[place]) - term_of(text[place - ngram_size_]) * leaving_;
}

// The last token has not reached the upper bits, which choose: as good as a remainder, and cheaper.
std::size_t NgramIndex::bucket_of(std::uint64_t hash) const {
    return static_cast<std::size_t>((((hash * kMixer) >> 32U) * heads_.size()) >> 32U);
}

// REQUIRES: begin >= ngram_size_, where there is anything to add; links_ has them all
void NgramIndex::add(std::span<const Token> text, std::size_t begin, std::size_t end) {
    if (begin >= end) return;
    std::uint64_t hash = hash_of(text, begin);
    for (std::size_t place = begin; place < end; ++place) {
        if (place > begin) hash = next_hash(text, place - 1, hash);
        Place& head = heads_[bucket_of(hash)];
        links_[place] = head;
        head = static_cast<Place>(place);
    }
}

void NgramIndex::rebuild(std::span<const Token> text) {
    heads_ = {};  // before the new table is made: never both at once
    heads_.resize(n_buckets_for(text.size()));
    add(text, ngram_size_, links_.size());
}

void NgramIndex::extend(std::span<const Token> text, std::size_t n) {
    if (n >= heads_.size() * kPlacesPerBucket) rebuild(text);
    const std::size_t n_before = links_.size();
    if (n < n_before) return;
    links_.resize(n + 1);
    add(text, std::max(n_before, ngram_size_), n + 1);
}

Place NgramIndex::latest(std::span<const Token> text) const {
    if (text.size() < ngram_size_ || heads_.empty()) return 0;
    return text.size() < links_.size() ? links_[text.size()] : latest_like(text);
}

Place NgramIndex::latest_like(std::span<const Token> other) const {
    if (other.size() < ngram_size_ || heads_.empty()) return 0;
    return heads_[bucket_of(hash_of(other, other.size()))];
}

}  // namespace luce::speculation
