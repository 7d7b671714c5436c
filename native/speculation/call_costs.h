// CallCosts: what a call of the target costs on this machine by how many lanes it serves and how many drafted tokens
// it verifies beside their own, learnt from calls as they happen. Knows no clock, no lane and no draft.
//
// For each number of lanes and each octave of context there is a table, in logarithms: the cost of the plain call,
// which moves (other programs, a growing context), and the ratio to it of each number of drafted tokens, which hardly
// does. Each call, whatever it verified, tells something of all of these, and a filter keeps how the errors hang
// together, so that it does not matter which calls the gate chooses to make. Before any was measured, ratios are a
// Brownian motion around a guess: those of neighbours resemble each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "speculation/log_filter.h"

namespace luce::speculation {

// Numbers of drafted tokens that are told apart: all up to 16, then eight an octave.
class TokenLadder {
public:
    static std::int32_t rung(std::size_t index);
    static std::size_t index_below(std::int32_t n);  // the highest rung <= n
    static bool is_rung(std::int32_t n) { return rung(index_below(n)) == n; }
};

// The costs of one situation, in seconds a call. Numbers of tokens may be means.
class CostCurve {
public:
    // Never falls as tokens are added.
    double expected_s(double n_drafted) const { return at(expected_, n_drafted); }
    // What it may well be at best, where it is not known well; elsewhere what is expected.
    double hopeful_s(double n_drafted) const { return at(hopeful_, n_drafted); }
    // What it may well be at worst: where it is not known well no more than one plain call a token.
    double worst_s(double n_drafted) const { return at(worst_, n_drafted); }
    double plain_s() const { return expected_.empty() ? 0 : expected_.front(); }

    // Enough is known to compare speculation with plain decoding.
    bool is_known() const { return is_known_; }
    // How far the logarithm of the ratio to a plain call may be off.
    double deviation(double n_drafted) const { return at(deviation_, n_drafted); }
    // Calls in this situation since the last plain one.
    std::uint64_t n_calls_since_plain() const { return n_calls_since_plain_; }
    std::uint64_t n_plain() const { return n_plain_; }

private:
    friend class CallCosts;
    static double at(const std::vector<double>& values, double n_drafted);

    std::vector<double> expected_;  // by rung
    std::vector<double> hopeful_;
    std::vector<double> worst_;
    std::vector<double> deviation_;
    bool is_known_ = false;
    std::uint64_t n_calls_since_plain_ = 0;
    std::uint64_t n_plain_ = 0;
};

class CallCosts {
public:
    // At most so many lanes, and so many drafted tokens in each.
    CallCosts(std::int32_t n_lanes, std::int32_t n_most);

    // Measurements that cannot be are left out.
    void observe(std::int32_t n_lanes, std::int32_t n_drafted, std::int32_t n_longest, double seconds);

    // REQUIRES: 1 <= n_lanes <= the most. Valid until the next call of this object.
    const CostCurve& curve(std::int32_t n_lanes, std::int32_t n_longest);

private:
    struct Table {
        std::int32_t n_lanes = 0;
        // At 0 the logarithm of a plain call's seconds, at i > 0 that of rung i's ratio to it. Empty: never used.
        LogFilter state;
        std::uint64_t n_plain = 0;  // plain calls measured
        std::uint64_t n_calls = 0;
        std::uint64_t last_plain = 0;  // of this table's calls
        std::uint64_t last_call = 0;   // of all tables'
        bool is_inherited = false;
        bool knows_plain = false;  // from these lanes' calls elsewhere
        bool is_stale = true;
        CostCurve curve;
    };
    struct Block {  // neighbouring rungs that must be equal for costs not to fall
        double cost = 0;
        double weight = 0;
        std::size_t last = 0;
    };

    Table& table_of(std::int32_t n_lanes, std::int32_t n_longest);
    void guess(Table& table) const;
    void inherit(Table& table, std::size_t context, std::size_t lanes);
    void wear(Table& table, double share) const;
    void learn(Table& table, std::size_t rung, double log_s);
    void draw(Table& table);

    std::int32_t n_lanes_;
    std::int32_t n_most_;
    std::vector<Table> tables_;  // by octave of context, then by lanes
    std::vector<Block> blocks_;
    std::uint64_t n_calls_ = 0;
    LogNoise noise_;
};

}  // namespace luce::speculation
