// FeatureRows: rows of features that wait in the order in which they came. They are appended without being cleared and
// taken off the front without moving the others: a row of a large model is 80 KB and more, a lane gets one a step.
#pragma once

#include <cstddef>
#include <memory>

namespace luce::llama {

class FeatureRows {
public:
    explicit FeatureRows(std::size_t n_floats) : n_floats_(n_floats) {}  // of a row

    bool empty() const { return n_ == 0; }
    std::size_t size() const { return n_; }
    // Valid until the next append(). REQUIRES: i < size()
    float* row(std::size_t i) { return rows_.get() + (first_ + i) * n_floats_; }

    void append(std::size_t n);  // whatever stands in them is the caller's to write
    // REQUIRES: n <= size()
    void take_front(std::size_t n);
    void take_back(std::size_t n) { n_ -= n; }

    // Of none, give back room for more than so many.
    void trim(std::size_t n_most);

private:
    std::size_t n_floats_;
    std::unique_ptr<float[]> rows_;
    std::size_t n_room_ = 0;
    std::size_t first_ = 0;
    std::size_t n_ = 0;
};

}  // namespace luce::llama
