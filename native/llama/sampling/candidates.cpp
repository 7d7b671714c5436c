// Why the chain picks the same token from what is left: it cuts the same set in the same order.
//
// Top-k. llama.cpp's link is std::partial_sort for k up to 128: a heap of the first k entries, in which each later
// entry that is larger than the heap's least takes that one's place. Entries that are not larger do nothing. Here these
// are left out: the first k ids are always taken, and after them what is larger than the k-th of the logits seen so
// far, which is no more than the heap's least. For larger k the link sorts buckets of 20/128 between -10 and 10, and
// only those that hold the first k: all of their entries are taken.
//
// Tokens that penalties and biases change are taken in any case and raise no floor: what the others alone have as their
// k-th is never above what all have.
//
// Min-p is a threshold below the largest logit; its link keeps the order.
#include "llama/sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "llama/decoding/logit_choice.h"
#include "llama/decoding/row_scan.h"

namespace luce::llama {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Beyond that share of the vocabulary a table of all of it is as cheap.
constexpr std::size_t kMostShare = 8;

constexpr std::size_t kMostSorted = 128;  // of llama.cpp's link: what it sorts without buckets
constexpr float kBucketsBegin = -10.0F;
constexpr float kBucketsEnd = 10.0F;
constexpr float kBucketMargin = 0.25F;  // wider than a bucket

class TopKFloor {
public:
    explicit TopKFloor(std::size_t k) : largest_(k), has_buckets_(k > kMostSorted) {}

    bool is_open() const { return is_open_; }
    float value() const { return value_; }

    void add(float logit) {
        if (!largest_.is_open() && !(logit > largest_.value())) return;
        largest_.add(logit);
        if (largest_.is_open()) return;
        value_ = largest_.value();
        if (has_buckets_) value_ = std::min(value_, kBucketsEnd) - kBucketMargin;
        is_open_ = has_buckets_ && value_ < kBucketsBegin;
    }

private:
    LargestFloor largest_;
    bool has_buckets_;
    bool is_open_ = true;
    float value_ = -kInfinity;
};

// Its link keeps what is no less than the largest logit and the logarithm of min_p, in floats.
class MinPFloor {
public:
    explicit MinPFloor(float min_p) : log_p_(logf(min_p)) {}

    bool is_open() const { return peak_ == -kInfinity; }
    float value() const { return is_open() ? -kInfinity : std::nextafter(peak_ + log_p_, -kInfinity); }
    void add(float logit) { peak_ = std::max(peak_, logit); }

private:
    float log_p_;
    float peak_ = -kInfinity;
};

template <typename Floor>
void take_above(std::span<const float> logits, std::span<const Token> touched, Floor floor,
                std::vector<llama_token_data>& tokens) {
    const auto take = [&](std::size_t i, float logit) {
        tokens.push_back({static_cast<Token>(i), logit, 0.0F});
        floor.add(logit);
    };
    std::size_t next = 0;
    for (const Token token : touched) {
        const auto at = static_cast<std::size_t>(token);
        scan_above(logits, next, at, floor, take);
        if (!std::isnan(logits[at])) tokens.push_back({token, logits[at], 0.0F});
        next = at + 1;
    }
    scan_above(logits, next, logits.size(), floor, take);
}

void take_all(std::span<const float> logits, std::vector<llama_token_data>& tokens) {
    tokens.resize(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) tokens[i] = {static_cast<Token>(i), logits[i], 0.0F};
}

}  // namespace

Result<void> Candidates::take(std::span<const float> logits, const FirstCut& cut, std::span<const Token> touched) {
    tokens_.clear();
    const auto k = static_cast<std::size_t>(cut.kind == FirstCut::Kind::top_k ? cut.top_k : 1);
    if (cut.kind == FirstCut::Kind::none || k + touched.size() > logits.size() / kMostShare) {
        if (const Result<Token> checked = argmax(logits); !checked) return checked.error();
        take_all(logits, tokens_);
    } else {
        if (cut.kind == FirstCut::Kind::min_p) {
            take_above(logits, touched, MinPFloor(cut.min_p), tokens_);
        } else {
            take_above(logits, touched, TopKFloor(k), tokens_);
        }
        float peak = -kInfinity;
        for (const llama_token_data& token : tokens_) peak = std::max(peak, token.logit);
        if (!std::isfinite(peak)) return no_finite_logits();
    }
    array_ = {tokens_.data(), tokens_.size(), -1, false};
    return {};
}

}  // namespace luce::llama
