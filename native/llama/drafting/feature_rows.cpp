#include "llama/drafting/feature_rows.h"

#include <algorithm>
#include <utility>

namespace luce::llama {
namespace {

constexpr std::size_t kMostSpare = 64;  // rows, in new room: a prompt's come many at once, and wait for nobody

}  // namespace

void FeatureRows::append(std::size_t n) {
    const std::size_t n_needed = n_ + n;
    if (first_ + n_needed > n_room_) {
        std::unique_ptr<float[]> grown;
        // Where at most half of the room is taken, rows are moved less often than they are written.
        if (n_needed > n_room_ || 2 * n_ > n_room_) {
            n_room_ = n_needed + std::min(n_needed, kMostSpare);
            grown = std::make_unique_for_overwrite<float[]>(n_room_ * n_floats_);
        }
        if (n_ > 0) std::copy_n(row(0), n_ * n_floats_, grown ? grown.get() : rows_.get());
        if (grown) rows_ = std::move(grown);
        first_ = 0;
    }
    n_ = n_needed;
}

void FeatureRows::take_front(std::size_t n) {
    n_ -= n;
    first_ = n_ == 0 ? 0 : first_ + n;
}

void FeatureRows::trim(std::size_t n_most) {
    if (n_ > 0 || n_room_ <= n_most) return;
    rows_.reset();
    n_room_ = 0;
}

}  // namespace luce::llama
