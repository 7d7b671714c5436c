#include "llama/kv_cache/kv_cells.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "llama-kv-cache.h"
#include "llama-kv-cells.h"
#include "llama/decoding/private_member.h"
#include "llama/kv_cache/memory_parts.h"

namespace luce::llama {

struct SearchStarts {
    friend constexpr auto member_of(SearchStarts);
};

struct PositionsOfCells {
    friend constexpr auto member_of(PositionsOfCells);
};
struct UsedCells {
    friend constexpr auto member_of(UsedCells);
};
struct SequencesOfCells {
    friend constexpr auto member_of(SequencesOfCells);
};
struct CellsOfSequences {
    friend constexpr auto member_of(CellsOfSequences);
};

template struct PrivateMember<SearchStarts, &llama_kv_cache::v_heads>;
template struct PrivateMember<PositionsOfCells, &llama_kv_cells::pos>;
template struct PrivateMember<UsedCells, &llama_kv_cells::used>;
template struct PrivateMember<SequencesOfCells, &llama_kv_cells::seq>;
template struct PrivateMember<CellsOfSequences, &llama_kv_cells::seq_pos>;

using memory::Cell;

namespace {

// libllama asks for the last one of a sequence's positions, for the few before it (models that embed n-ngrams of
// tokens), and for those of its last computation, by way of drop().
constexpr Position kNamed = 64;

}  // namespace

// The cache hands its cells out for reading only, but they are no constants: the cache itself is ours to change.
llama_kv_cells& KvCells::cells() const { return const_cast<llama_kv_cells&>(cache_->get_cells(0)); }

KvCells::KvCells(llama_kv_cache& cache, bool has_2d_positions)
    : cache_(&cache),
      has_2d_positions_(has_2d_positions),
      is_aside_(cells().size()),
      limit_(cells().size()),
      free_end_(limit_) {}

void KvCells::set_limit(Cell limit) {
    assert(are_free_from(limit));
    limit_ = free_end_ = limit;
}

bool KvCells::are_free_from(Cell first) const {
    for (Cell cell = first; cell < limit_; ++cell) {
        if (!cells().is_empty(cell)) return false;
    }
    return true;
}

bool KvCells::is_seen_from(Cell first) const {
    auto of_holder = (cells().*member_of(SequencesOfCells{})).front();
    of_holder.reset();
    of_holder.set(static_cast<std::size_t>(holder_id()));
    const auto& sequences = cells().*member_of(SequencesOfCells{});
    return std::any_of(sequences.begin() + first, sequences.begin() + limit_,
                       [&](const auto& seen) { return (seen & ~of_holder).any(); });
}

std::uint32_t& KvCells::search_start() const { return (cache_->*member_of(SearchStarts{}))[0]; }

std::int32_t KvCells::size() const { return cache_ == nullptr ? 0 : static_cast<std::int32_t>(cells().size()); }

std::int32_t KvCells::n_used() const { return cache_ == nullptr ? 0 : static_cast<std::int32_t>(cells().get_used()); }

std::int32_t KvCells::n_spanned(std::int32_t n) const {
    if (cache_ == nullptr) return 0;
    std::vector<Cell> next(static_cast<std::size_t>(n));
    lowest_free(next);
    const Cell end = cells().used_max_p1();
    return static_cast<std::int32_t>(next.empty() ? end : std::max(end, next.back() + 1));
}

KvCells::WiderSpan::WiderSpan(KvCells& cells, Cell end) : cells_(cells) {
    if (cells.cache_ == nullptr || end <= cells.cells().used_max_p1()) return;
    named_ = end - 1;
    (cells.cells().*member_of(UsedCells{})).insert(*named_);
}

KvCells::WiderSpan::~WiderSpan() {
    if (!named_) return;
    const bool is_used = !cells_.cells().is_empty(*named_) && !cells_.is_aside_[*named_];
    if (!is_used) (cells_.cells().*member_of(UsedCells{})).erase(*named_);
}

const KvCells::Unnamed& KvCells::unnamed(std::int32_t sequence) const {
    static constexpr Unnamed kNone;
    const auto index = static_cast<std::size_t>(sequence);
    return index < unnamed_.size() ? unnamed_[index] : kNone;
}

KvCells::Unnamed& KvCells::unnamed(std::int32_t sequence) {
    const auto index = static_cast<std::size_t>(sequence);
    if (index >= unnamed_.size()) unnamed_.resize(index + 1);
    return unnamed_[index];
}

bool KvCells::is_named(std::int32_t sequence, Cell cell) const {
    return cells().seq_pos_get(sequence).contains({cells().pos_get(cell), cell});
}

// In ascending order of the cells.
std::vector<Cell> KvCells::unnamed_cells(std::int32_t sequence) const {
    std::vector<Cell> found;
    const std::size_t n = unnamed(sequence).n;
    found.reserve(n);
    const Cell end = cells().used_max_p1();
    for (Cell cell = 0; cell < end && found.size() < n; ++cell) {
        if (cells().seq_has(cell, sequence) && !is_named(sequence, cell)) found.push_back(cell);
    }
    return found;
}

Result<void> KvCells::find(std::int32_t sequence, Position begin, std::span<Cell> found) const {
    if (found.empty()) return {};
    const Error missing{ErrorCode::internal, "lane " + std::to_string(sequence) + " does not hold all positions from " +
                                                 std::to_string(begin) + " on"};
    if (cache_ == nullptr) return missing;
    std::vector<bool> is_found(found.size());
    std::size_t n_found = 0;
    const auto end = begin + static_cast<Position>(found.size());
    const auto take = [&](Position position, Cell cell) {
        if (position < begin || position >= end) return;
        const auto index = static_cast<std::size_t>(position - begin);
        found[index] = cell;
        if (!is_found[index]) ++n_found;
        is_found[index] = true;
    };
    const auto& by_position = cells().seq_pos_get(sequence);
    for (auto at = by_position.lower_bound({begin, 0}); at != by_position.end() && at->first < end; ++at) {
        take(at->first, at->second);
    }
    if (n_found < found.size() && begin < unnamed(sequence).end) {
        for (const Cell cell : unnamed_cells(sequence)) take(cells().pos_get(cell), cell);
    }
    if (n_found < found.size()) return missing;
    return {};
}

void KvCells::hold(std::span<const Cell> held) {
    auto& sequences = cells().*member_of(SequencesOfCells{});
    for (const Cell cell : held) {
        assert(!cells().is_empty(cell) && !cells().seq_has(cell, holder_id()));
        sequences[cell].set(static_cast<std::size_t>(holder_id()));
    }
}

void KvCells::release(std::span<const Cell> released) {
    auto& sequences = cells().*member_of(SequencesOfCells{});
    std::vector<Cell> vacated;
    for (const Cell cell : released) {
        assert(!cells().is_empty(cell) && cells().seq_has(cell, holder_id()));
        sequences[cell].reset(static_cast<std::size_t>(holder_id()));
        if (sequences[cell].none()) vacated.push_back(cell);
    }
    vacate(vacated);
}

// A text's cells come in the order of their positions, so the place of each is behind all that are there, and need not
// be searched for.
void KvCells::add(std::int32_t sequence, std::span<const Cell> added) {
    llama_kv_cells& all = cells();
    auto& sequences = all.*member_of(SequencesOfCells{});
    auto& by_position = (all.*member_of(CellsOfSequences{}))[sequence];
    Position last = by_position.empty() ? 0 : by_position.rbegin()->first;
    for (const Cell cell : added) last = std::max(last, all.pos_get(cell));
    Unnamed& rest = unnamed(sequence);
    for (const Cell cell : added) {
        assert(!all.is_empty(cell) && !all.seq_has(cell, sequence));
        sequences[cell].set(static_cast<std::size_t>(sequence));
        const Position position = all.pos_get(cell);
        if (position > last - kNamed) {
            by_position.emplace_hint(by_position.end(), position, cell);
            continue;
        }
        ++rest.n;
        rest.end = std::max(rest.end, position + 1);
    }
}

void KvCells::remove(std::int32_t sequence, std::span<const Cell> removed) {
    llama_kv_cells& all = cells();
    auto& sequences = all.*member_of(SequencesOfCells{});
    auto& by_position = (all.*member_of(CellsOfSequences{}))[sequence];
    std::vector<Cell> vacated;
    for (const Cell cell : removed) {
        assert(!all.is_empty(cell) && all.seq_has(cell, sequence));
        sequences[cell].reset(static_cast<std::size_t>(sequence));
        if (by_position.erase({all.pos_get(cell), cell}) == 0) --unnamed(sequence).n;
        if (sequences[cell].none()) vacated.push_back(cell);
    }
    vacate(vacated);
}

void KvCells::remove_from(std::int32_t sequence, Position begin) {
    if (cache_ == nullptr) return;
    const auto& by_position = cells().seq_pos_get(sequence);
    std::vector<Cell> removed;
    for (auto at = by_position.lower_bound({begin, 0}); at != by_position.end(); ++at) removed.push_back(at->second);
    if (begin >= unnamed(sequence).end) return remove(sequence, removed);
    // Further back than was computed: the last of what stays are to have their names.
    const std::vector<Cell> shown = unnamed_cells(sequence);
    const auto is_left = [&](Cell cell) { return cells().pos_get(cell) < begin; };
    std::copy_if(shown.begin(), shown.end(), std::back_inserter(removed), [&](Cell cell) { return !is_left(cell); });
    std::vector<Cell> left;
    std::copy_if(shown.begin(), shown.end(), std::back_inserter(left), is_left);
    remove(sequence, removed);
    auto& sequences = cells().*member_of(SequencesOfCells{});
    for (const Cell cell : left) sequences[cell].reset(static_cast<std::size_t>(sequence));
    unnamed(sequence) = {};
    add(sequence, left);
}

// llama_kv_cells::seq_rm for all of a sequence, which is searched for nothing but bits.
void KvCells::remove_all(std::int32_t sequence) {
    if (cache_ == nullptr) return;
    llama_kv_cells& all = cells();
    auto& sequences = all.*member_of(SequencesOfCells{});
    const auto by_position = std::exchange((all.*member_of(CellsOfSequences{})) [sequence], {});
    std::vector<Cell> vacated;
    const auto leave = [&](Cell cell) {
        sequences[cell].reset(static_cast<std::size_t>(sequence));
        if (sequences[cell].none()) vacated.push_back(cell);
    };
    for (const auto& [position, cell] : by_position) leave(cell);
    std::size_t n_left = std::exchange(unnamed(sequence), {}).n;
    for (Cell cell = 0; n_left > 0 && cell < all.size(); ++cell) {
        if (!all.seq_has(cell, sequence)) continue;
        leave(cell);
        --n_left;
    }
    vacate(vacated);
}

// llama_kv_cells::rm for cells that no sequence has any more, which it would search for in all of them. Many follow
// one another.
void KvCells::vacate(std::span<const Cell> vacated) {
    llama_kv_cells& all = cells();
    auto& positions = all.*member_of(PositionsOfCells{});
    auto& used = all.*member_of(UsedCells{});
    auto at = used.end();
    for (const Cell cell : vacated) {
        positions[cell] = -1;
        all.ext_set(cell, {});
        search_start() = std::min(search_start(), cell);
        free_end_ = std::max(free_end_, cell + 1);
        if (is_aside_[cell]) {
            is_aside_[cell] = false;
            --n_aside_;
            continue;
        }
        if (at == used.end() || *at != cell) at = used.find(cell);
        at = used.erase(at);
    }
}

// A bit in each cell, which is all that attention asks for; the books of positions would take a search for each. Of
// these libllama asks the first and the last one, which have to be the sequence's, before it takes a batch.
void KvCells::lend(std::int32_t sequence, std::span<const std::int32_t> branches, Position from) {
    if (cache_ == nullptr) return;
    llama_kv_cells& all = cells();
    auto& sequences = all.*member_of(SequencesOfCells{});
    auto& by_position = all.*member_of(CellsOfSequences{});
    const auto& lent = by_position[sequence];
    if (lent.empty()) return;
    auto bits = sequences.front();
    bits.reset();
    for (const std::int32_t branch : branches) bits.set(static_cast<std::size_t>(branch));
    const Cell end = all.used_max_p1();
    for (Cell cell = 0; cell < end; ++cell) {
        if (all.seq_has(cell, sequence) && all.pos_get(cell) >= from) sequences[cell] |= bits;
    }
    for (const std::int32_t branch : branches) by_position[branch] = {*lent.begin(), *lent.rbegin()};
}

Result<void> KvCells::take_back(std::int32_t sequence, std::span<const std::int32_t> branches, Position begin,
                                std::int32_t along, Position end) {
    if (cache_ == nullptr) return {};
    llama_kv_cells& all = cells();
    auto& sequences = all.*member_of(SequencesOfCells{});
    auto& by_position = all.*member_of(CellsOfSequences{});
    std::vector<Cell> kept(static_cast<std::size_t>(end - begin));
    const Result<void> found = find(along, begin, kept);
    if (!found) kept.clear();
    for (const Cell cell : kept) {
        if (!all.seq_has(cell, sequence)) all.seq_add(cell, sequence);
    }
    std::vector<Cell> beside;
    for (auto at = by_position[sequence].lower_bound({begin, 0}); at != by_position[sequence].end(); ++at) {
        if (std::find(kept.begin(), kept.end(), at->second) == kept.end()) beside.push_back(at->second);
    }
    remove(sequence, beside);
    auto bits = sequences.front();
    bits.reset();
    for (const std::int32_t branch : branches) {
        remove_from(branch, begin);
        by_position[branch].clear();
        bits.set(static_cast<std::size_t>(branch));
    }
    const Cell used_end = all.used_max_p1();
    for (Cell cell = 0; cell < used_end; ++cell) sequences[cell] &= ~bits;
    return found;
}

void KvCells::lowest_free(std::span<Cell> found) const {
    if (found.empty()) return;
    assert(static_cast<std::size_t>(n_free()) >= found.size());
    const Cell end = cells().size();
    Cell at = search_start();
    for (Cell& cell : found) {
        while (at >= end || !cells().is_empty(at)) at = at >= end ? 0 : at + 1;
        cell = at++;
    }
}

// llama_kv_cache::apply_ubatch is what it has to agree with.
void KvCells::fill(Position begin, std::span<const Token> tokens, std::span<const Cell> filled) {
    if (filled.empty()) return;
    llama_kv_cells& all = cells();
    auto& positions = all.*member_of(PositionsOfCells{});
    auto& used = all.*member_of(UsedCells{});
    auto at = used.lower_bound(filled.front());
    Position position = begin;
    for (std::size_t i = 0; i < filled.size(); ++i) {
        assert(all.is_empty(filled[i]));
        llama_kv_cell_ext ext;
        ext.tok = tokens[i];
        if (has_2d_positions_) ext.x = ext.y = position;
        positions[filled[i]] = position++;
        all.ext_set(filled[i], ext);
        at = std::next(used.emplace_hint(at, filled[i]));
    }
    search_start() = filled.back() + 1;
}

std::vector<Cell> KvCells::highest_places(std::span<const Cell> from) {
    std::vector<Cell> found;  // from the highest down
    for (Cell at = free_end_; at > 0 && found.size() < from.size() && at - 1 > from[found.size()]; --at) {
        if (cells().is_empty(at - 1)) {
            found.push_back(at - 1);
        } else if (found.empty()) {
            free_end_ = at - 1;
        }
    }
    std::vector<Cell> to(from.begin(), from.end());
    std::copy(found.rbegin(), found.rend(), to.begin());
    return to;
}

std::vector<Cell> KvCells::lowest_places(std::span<const Cell> from) const {
    std::vector<Cell> found(std::min(from.size(), static_cast<std::size_t>(n_free())));
    lowest_free(found);
    std::size_t n = 0;
    while (n < found.size() && found[n] < from[from.size() - 1 - n]) ++n;
    std::vector<Cell> to(from.begin(), from.end());
    std::copy_n(found.begin(), n, to.end() - static_cast<std::ptrdiff_t>(n));
    return to;
}

void KvCells::move(std::span<const Cell> from, std::span<const Cell> to, bool are_aside) {
    llama_kv_cells& all = cells();
    auto& positions = all.*member_of(PositionsOfCells{});
    auto& used = all.*member_of(UsedCells{});
    auto& sequences = all.*member_of(SequencesOfCells{});
    std::vector<Cell> vacated;
    for (std::size_t i = 0; i < from.size(); ++i) {
        assert(sequences[from[i]].count() == 1 && all.seq_has(from[i], holder_id()));
        const bool moves = from[i] != to[i];
        if (!moves && is_aside_[to[i]] == are_aside) continue;
        if (moves) {
            assert(all.is_empty(to[i]));
            positions[to[i]] = positions[from[i]];
            all.ext_set(to[i], all.ext_get(from[i]));
            sequences[to[i]].set(static_cast<std::size_t>(holder_id()));
            sequences[from[i]].reset();
            vacated.push_back(from[i]);
        }
        is_aside_[to[i]] = are_aside;
        if (are_aside) {
            ++n_aside_;
            if (!moves) used.erase(to[i]);
        } else {
            used.insert(to[i]);
            if (!moves) --n_aside_;
        }
    }
    vacate(vacated);
}

}  // namespace luce::llama
