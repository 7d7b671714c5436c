#include "llama/kv_cells.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>
#include <vector>

#include "llama-kv-cache.h"
#include "llama-kv-cells.h"
#include "llama/private_member.h"

namespace luce::llama {

struct SearchStarts {
    friend constexpr auto member_of(SearchStarts);
};

struct SequencesOfCells {
    friend constexpr auto member_of(SequencesOfCells);
};
struct CellsOfSequences {
    friend constexpr auto member_of(CellsOfSequences);
};

template struct PrivateMember<SearchStarts, &llama_kv_cache::v_heads>;
template struct PrivateMember<SequencesOfCells, &llama_kv_cells::seq>;
template struct PrivateMember<CellsOfSequences, &llama_kv_cells::seq_pos>;

using memory::Cell;

// The cache hands its cells out for reading only, but they are no constants: the cache itself is ours to change.
llama_kv_cells& KvCells::cells() const { return const_cast<llama_kv_cells&>(cache_->get_cells(0)); }

std::uint32_t& KvCells::search_start() const { return (cache_->*member_of(SearchStarts{}))[0]; }

std::int32_t KvCells::size() const { return cache_ == nullptr ? 0 : static_cast<std::int32_t>(cells().size()); }

std::int32_t KvCells::n_used() const { return cache_ == nullptr ? 0 : static_cast<std::int32_t>(cells().get_used()); }

std::int32_t KvCells::n_spanned() const {
    return cache_ == nullptr ? 0 : static_cast<std::int32_t>(cells().used_max_p1());
}

Result<void> KvCells::find(std::int32_t sequence, Position begin, std::span<Cell> found) const {
    if (found.empty()) return {};
    const Error missing{ErrorCode::internal, "lane " + std::to_string(sequence) + " does not hold all positions from " +
                                                 std::to_string(begin) + " on"};
    if (cache_ == nullptr) return missing;
    const auto& by_position = cells().seq_pos_get(sequence);
    auto at = by_position.lower_bound({begin, 0});
    Position position = begin;
    for (Cell& cell : found) {
        if (at == by_position.end() || at->first != position++) return missing;
        cell = (at++)->second;
    }
    return {};
}

// llama_kv_cells::seq_add for many: a text's cells come in the order of their positions, so the place of each is behind
// all that are there, and need not be searched for.
void KvCells::add(std::int32_t sequence, std::span<const Cell> added) {
    llama_kv_cells& all = cells();
    auto& sequences = all.*member_of(SequencesOfCells{});
    auto& by_position = (all.*member_of(CellsOfSequences{}))[sequence];
    for (const Cell cell : added) {
        assert(!all.is_empty(cell) && !all.seq_has(cell, sequence));
        sequences[cell].set(static_cast<std::size_t>(sequence));
        by_position.emplace_hint(by_position.end(), all.pos_get(cell), cell);
    }
}

void KvCells::remove(std::int32_t sequence, std::span<const Cell> removed) {
    for (const Cell cell : removed) {
        assert(!cells().is_empty(cell) && cells().seq_has(cell, sequence));
        const bool is_free = cells().seq_rm(cell, sequence);
        if (is_free) search_start() = std::min(search_start(), cell);
    }
}

void KvCells::remove_from(std::int32_t sequence, Position begin) {
    if (cache_ == nullptr) return;
    const auto& by_position = cells().seq_pos_get(sequence);
    std::vector<Cell> removed;
    for (auto at = by_position.lower_bound({begin, 0}); at != by_position.end(); ++at) removed.push_back(at->second);
    remove(sequence, removed);
}

// llama_kv_cells::seq_rm for all of a sequence, which is searched for nothing.
void KvCells::remove_all(std::int32_t sequence) {
    if (cache_ == nullptr) return;
    llama_kv_cells& all = cells();
    auto& sequences = all.*member_of(SequencesOfCells{});
    const auto by_position = std::exchange((all.*member_of(CellsOfSequences{})) [sequence], {});
    for (const auto& [position, cell] : by_position) {
        sequences[cell].reset(static_cast<std::size_t>(sequence));
        if (sequences[cell].any()) continue;
        all.rm(cell);
        search_start() = std::min(search_start(), cell);
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
    for (auto at = lent.lower_bound({from, 0}); at != lent.end(); ++at) sequences[at->second] |= bits;
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
    for (const auto& [position, cell] : by_position[sequence]) sequences[cell] &= ~bits;
    return found;
}

void KvCells::lowest_free(std::span<Cell> found) const {
    if (found.empty()) return;
    assert(static_cast<std::size_t>(size() - n_used()) >= found.size());
    const Cell end = cells().size();
    Cell at = search_start();
    for (Cell& cell : found) {
        while (at >= end || !cells().is_empty(at)) at = at >= end ? 0 : at + 1;
        cell = at++;
    }
}

// llama_kv_cache::apply_ubatch is what it has to agree with.
void KvCells::fill(std::int32_t sequence, Position begin, std::span<const Token> tokens, std::span<const Cell> filled) {
    Position position = begin;
    for (std::size_t i = 0; i < filled.size(); ++i) {
        llama_kv_cell_ext ext;
        ext.tok = tokens[i];
        if (has_2d_positions_) ext.x = ext.y = position;
        cells().pos_set(filled[i], position++);
        cells().ext_set(filled[i], ext);
        cells().seq_add(filled[i], sequence);
    }
}

}  // namespace luce::llama
