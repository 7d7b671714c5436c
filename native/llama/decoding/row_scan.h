// What passes over a row of logits have in common: blocks that vector instructions compare as one, and the running
// floor below which nothing is among the n largest. So a pass looks closer at a few hundred entries of 250,000, and
// writes no table of them. Knows no tokens and no sampling.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace luce::llama {

// Few enough that a block with something in it is soon looked through, enough to pay for its own overhead.
constexpr std::size_t kScanBlock = 64;

// Whether any of a block's values is above the floor; a NaN never is. No branches, and independent accumulators that
// only bits are added to: the compiler makes vectors of them, which on a vocabulary of 250,000 saves a twentieth of a
// fast model's decode step.
inline bool any_above(std::span<const float, kScanBlock> block, float floor) {
    std::array<std::int32_t, 16> above{};
    for (std::size_t i = 0; i < block.size(); i += above.size()) {
        for (std::size_t j = 0; j < above.size(); ++j) above[j] |= -static_cast<std::int32_t>(block[i + j] > floor);
    }
    std::int32_t any = 0;
    for (const std::int32_t bits : above) any |= bits;
    return any != 0;
}

// The n largest of the values that were added so far: a value that is not above the floor is none of them, or no larger
// than the last of them.
class LargestFloor {
public:
    explicit LargestFloor(std::size_t n) : n_(n) { heap_.reserve(n); }

    bool is_open() const { return heap_.size() < n_; }  // each value is one of them
    float value() const { return is_open() ? -std::numeric_limits<float>::infinity() : heap_.front(); }

    // REQUIRES: is_open(), or above the floor; no NaN.
    void add(float value) {
        if (!is_open()) {
            std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
            heap_.pop_back();
        }
        heap_.push_back(value);
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }

private:
    std::size_t n_;
    std::vector<float> heap_;  // the least first
};

// Calls take(index, value) for each value that is above floor.value() at that time, in order, and for all but NaN while
// floor.is_open(). `take` may raise the floor.
template <typename Floor, typename Take>
void scan_above(std::span<const float> values, std::size_t begin, std::size_t end, const Floor& floor,
                const Take& take) {
    const auto look_through = [&](std::size_t first, std::span<const float> block) {
        for (std::size_t i = 0; i < block.size(); ++i) {
            // NOLINTNEXTLINE(misc-redundant-expression): false for what is no number
            if (block[i] > floor.value() || (floor.is_open() && block[i] == block[i])) take(first + i, block[i]);
        }
    };
    std::size_t first = begin;
    for (; first + kScanBlock <= end; first += kScanBlock) {
        const std::span<const float, kScanBlock> block(values.data() + first, kScanBlock);
        if (floor.is_open() || any_above(block, floor.value())) look_through(first, block);
    }
    look_through(first, values.subspan(first, end - first));
}

}  // namespace luce::llama
