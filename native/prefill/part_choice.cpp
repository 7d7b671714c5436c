#include "prefill/part_choice.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "prefill/sparse_text.h"

namespace luce::prefill {
namespace {

constexpr Position kLastChunks = 4;  // a sentence's beginning belongs to its end
constexpr Position kBlockShare = 4;  // of the budget: a larger block is no block

// Chunks that are read together or not at all, as numbers first .. last.
struct Unit {
    Position first = 0;
    Position last = 0;
    float score = 0;
};

class Chunks {
public:
    Chunks(Position n, const PartRules& rules)
        : n_(n), begin_(rules.begin), is_read_(static_cast<std::size_t>((n + kChunk - 1) / kChunk)) {}

    Position n() const { return static_cast<Position>(is_read_.size()); }
    Position first() const { return begin_ / kChunk; }

    PositionSpan span_of(Position first, Position last) const {
        return {std::max(begin_, first * kChunk), std::min(n_, (last + 1) * kChunk)};
    }

    // Tokens that reading these would add.
    Position n_added(Position first, Position last) const {
        Position n = 0;
        for (Position i = first; i <= last; ++i) {
            const PositionSpan span = span_of(i, i);
            if (!is_read_[static_cast<std::size_t>(i)]) n += std::max(0, span.end - span.begin);
        }
        return n;
    }

    Position read(Position first, Position last) {
        const Position n = n_added(first, last);
        std::fill(is_read_.begin() + first, is_read_.begin() + last + 1, true);
        return n;
    }

    std::vector<PositionSpan> parts() const {
        std::vector<PositionSpan> spans;
        for (Position i = first(); i < n(); ++i) {
            if (is_read_[static_cast<std::size_t>(i)]) spans.push_back(span_of(i, i));
        }
        return joined(std::move(spans), n_);
    }

private:
    Position n_;
    Position begin_;
    std::vector<bool> is_read_;
};

std::vector<Unit> units_of(const Chunks& chunks, std::span<const float> scores, const PartRules& rules, Position n) {
    const auto score_of = [scores](Position chunk) {
        const auto i = static_cast<std::size_t>(chunk);
        return i < scores.size() ? scores[i] : -std::numeric_limits<float>::infinity();
    };
    std::vector<Unit> units;
    Position next = chunks.first();
    const auto add_single = [&](Position end) {
        for (; next < end; ++next) units.push_back({next, next, score_of(next)});
    };
    for (const PositionSpan& block : joined(rules.blocks, n)) {
        if (block.end <= rules.begin || block.end - block.begin > rules.n_budget / kBlockShare) continue;
        const Position first = std::max(next, block.begin / kChunk);
        const Position last = (block.end - 1) / kChunk;
        if (first > last) continue;
        add_single(first);
        Unit unit{first, last, score_of(first)};
        for (; next <= last; ++next) unit.score = std::max(unit.score, score_of(next));
        units.push_back(unit);
    }
    add_single(chunks.n());
    return units;
}

}  // namespace

std::vector<PositionSpan> choose_parts(Position n, std::span<const float> scores, const PartRules& rules) {
    if (rules.begin >= n) return {};
    Chunks chunks(n, rules);
    Position n_read = chunks.read(std::max(chunks.first(), chunks.n() - kLastChunks), chunks.n() - 1);
    if (rules.begin == 0) n_read += chunks.read(0, 0);
    for (const PositionSpan& span : joined(rules.keep, n)) {
        if (span.end <= rules.begin) continue;
        n_read += chunks.read(std::max(span.begin, rules.begin) / kChunk, (span.end - 1) / kChunk);
    }
    std::vector<Unit> units = units_of(chunks, scores, rules, n);
    std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) { return a.score > b.score; });
    for (const Unit& unit : units) {
        if (n_read >= rules.n_budget) break;
        if (n_read + chunks.n_added(unit.first, unit.last) <= rules.n_budget)
            n_read += chunks.read(unit.first, unit.last);
    }
    return chunks.parts();
}

}  // namespace luce::prefill
