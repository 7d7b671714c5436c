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
//
// Top-p's link adds up the exponentials of all logits in order, in a float, sorts the first 256 as top-k does and goes
// on only if these are too few. Here the sum leaves out what a float does not notice. That sum and the cut are computed
// here, since the link knows no other sum than that of its candidates.
#include "llama/sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>

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

// The sum of expf(logit - peak), term after term, in a float, until it is above `most`. What is below half of its last
// bit does not change it.
class ExponentialSum {
public:
    ExponentialSum(float peak, float most) : peak_(peak), most_(most) {}

    bool is_open() const { return false; }
    float value() const { return floor_; }
    float sum() const { return sum_; }
    bool is_whole() const { return sum_ <= most_; }

    void add(float logit) {
        sum_ += expf(logit - peak_);
        if (!is_whole()) floor_ = kInfinity;
        if (!is_whole() || sum_ < doubled_ || std::abs(peak_) > kMostExact) return;
        const int exponent = std::ilogb(sum_);
        doubled_ = std::ldexp(2.0F, exponent);
        constexpr int kUnnoticed = 25;  // a float has 24 bits
        floor_ = peak_ + static_cast<float>(exponent - kUnnoticed) * std::numbers::ln2_v<float> - kMargin;
    }

private:
    static constexpr float kMargin = 0.01F;    // more than the floor's own rounding
    static constexpr float kMostExact = 1e4F;  // as long as the peak is no larger
    float peak_;
    float most_;
    float sum_ = 0;
    float doubled_ = std::numeric_limits<float>::min();
    float floor_ = -kInfinity;
};

constexpr std::size_t kTopPSorted = 256;     // what llama.cpp's top-p tries first
constexpr std::size_t kTopPSortsAll = 1024;  // a vocabulary up to that it sorts at once

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

}  // namespace

// Returns whether the first of all are enough. The sum of a flat row is soon so large that they cannot be.
bool Candidates::take_top_p(std::span<const float> logits, float peak, float top_p) {
    take_above(logits, {}, TopKFloor(kTopPSorted), tokens_);
    array_ = {tokens_.data(), tokens_.size(), -1, false};
    const std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> sort(
        llama_sampler_init_top_k(static_cast<std::int32_t>(kTopPSorted)), &llama_sampler_free);
    llama_sampler_apply(sort.get(), &array_);
    const std::span<llama_token_data> first(array_.data, array_.size);
    float sum_of_first = 0;
    for (const llama_token_data& token : first) sum_of_first += expf(token.logit - peak);

    constexpr float kRounding = 1.01F;  // near the limit the cut below decides
    ExponentialSum sum(peak, kRounding * sum_of_first / std::max(top_p, std::numeric_limits<float>::min()));
    scan_above(logits, 0, logits.size(), sum, [&](std::size_t, float logit) { sum.add(logit); });
    if (!sum.is_whole()) return false;
    float cumulated = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
        first[i].p = expf(first[i].logit - peak) / sum.sum();
        cumulated += first[i].p;
        if (cumulated < top_p) continue;
        array_.size = i + 1;
        return true;
    }
    return false;
}

llama_token_data_array& Candidates::take_all(std::span<const float> logits) {
    is_cut_ = false;
    tokens_.resize(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) tokens_[i] = {static_cast<Token>(i), logits[i], 0.0F};
    array_ = {tokens_.data(), tokens_.size(), -1, false};
    return array_;
}

Result<void> Candidates::take(std::span<const float> logits, const FirstCut& cut, std::span<const Token> touched) {
    tokens_.clear();
    is_cut_ = false;
    if (cut.kind == FirstCut::Kind::top_p && logits.size() > kTopPSortsAll) {
        const Result<Token> peak = argmax(logits);
        if (!peak) return peak.error();
        is_cut_ = take_top_p(logits, logits[static_cast<std::size_t>(peak.value())], cut.top_p);
        if (is_cut_) return {};
        take_all(logits);
        return {};
    }
    const auto k = static_cast<std::size_t>(cut.kind == FirstCut::Kind::top_k ? cut.top_k : 1);
    const bool wants_all = cut.kind == FirstCut::Kind::none || cut.kind == FirstCut::Kind::top_p;
    if (wants_all || k + touched.size() > logits.size() / kMostShare) {
        if (const Result<Token> checked = argmax(logits); !checked) return checked.error();
        take_all(logits);
        return {};
    }
    if (cut.kind == FirstCut::Kind::min_p) {
        take_above(logits, touched, MinPFloor(cut.min_p), tokens_);
    } else {
        take_above(logits, touched, TopKFloor(k), tokens_);
    }
    float peak = -kInfinity;
    for (const llama_token_data& token : tokens_) peak = std::max(peak, token.logit);
    if (!std::isfinite(peak)) return no_finite_logits();
    array_ = {tokens_.data(), tokens_.size(), -1, false};
    return {};
}

}  // namespace luce::llama
