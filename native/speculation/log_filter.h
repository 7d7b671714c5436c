// LogFilter: what is known of some quantities from the logarithms of durations: their means and how the errors hang
// together (a Kalman filter). A duration is sometimes ten times too long and never too short, so large surprises count
// for less, upwards above all, unless they come again. Knows nothing of what the quantities are.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace luce::speculation {

// The variance of a measurement's logarithm; may be shared by filters on the same machine.
class LogNoise {
public:
    double variance() const { return variance_; }
    // A surprise, where one of variance `doubt` was to be expected from what was not known.
    void observe(double surprise, double doubt);

private:
    double variance_ = 0.01;
    double n_seen_ = 0;
};

class LogFilter {
public:
    // How much a measured logarithm rises with a quantity.
    struct Term {
        std::size_t index = 0;
        double slope = 1;
    };

    LogFilter() = default;
    explicit LogFilter(std::size_t n) : mean_(n), covariance_(n * n) {}

    std::size_t size() const { return mean_.size(); }
    double mean(std::size_t i) const { return mean_[i]; }
    void set_mean(std::size_t i, double value) { mean_[i] = value; }
    double variance(std::size_t i) const { return covariance(i, i); }
    double covariance(std::size_t i, std::size_t j) const { return covariance_[i * size() + j]; }
    void add_covariance(std::size_t i, std::size_t j, double value) { covariance_[i * size() + j] += value; }
    // What was known of it is void: it may be off by that much, independently of the others.
    void loosen(std::size_t i, double variance);

    // A logarithm was measured that should have been `expected`. A lasting change is taken to be one of the quantities
    // first … last, all alike.
    void observe(std::span<const Term> terms, double expected, double measured, std::size_t first, std::size_t last,
                 LogNoise& noise);

private:
    std::vector<double> mean_;
    std::vector<double> covariance_;  // square
    std::vector<double> gains_;
    int n_large_ = 0;  // large surprises in a row; below 0: downwards
};

}  // namespace luce::speculation
