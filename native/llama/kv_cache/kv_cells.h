// KvCells: who sees which cell of an attention cache. "Held" is one more sequence in a cell, above all lanes; so
// libllama itself keeps a held cell out of its search for free ones. Knows no rows.
//
// libllama keeps a bit in each cell for each sequence that sees it, which is all that attention asks for, and for each
// sequence an ordered set of its positions, which costs fifty times as much to fill and to empty. It asks that set for
// the sequence's last positions only. So what is shown is named there as far as libllama asks; of the rest there are
// the bits, and the number of them here.
//
// Invariant: no free cell lies below the place where libllama starts to look for one. It moves that place back when it
// frees cells and forward only past cells that it has filled, and so does this class; so both fill the lowest free
// cells, which matters because attention runs over all cells up to the highest used one.
//
// A cell is set aside by taking it out of libllama's set of the used ones, which is where the highest one comes from,
// and of nothing else: with its position and its holder it is no free cell to libllama either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "memory/manager/kv_device.h"

class llama_kv_cache;
class llama_kv_cells;

namespace luce::llama {

class KvCells {
public:
    KvCells() = default;  // none
    // `has_2d_positions`: the model's rope has sections (M-RoPE), so a cell notes its place in an image as well.
    KvCells(llama_kv_cache& cache, bool has_2d_positions);

    std::int32_t size() const;

    // The first ones, that may be used: all, to begin with. REQUIRES: the others are free.
    std::int32_t limit() const { return static_cast<std::int32_t>(limit_); }
    void set_limit(memory::Cell limit);
    bool are_free_from(memory::Cell first) const;
    bool is_seen_from(memory::Cell first) const;  // by a lane

    std::int32_t n_used() const;  // and not set aside
    std::int32_t n_aside() const { return n_aside_; }
    std::int32_t n_free() const { return limit() - n_used() - n_aside_; }
    // Up to the highest used one, once the n lowest free ones are used as well. REQUIRES: so many are free.
    std::int32_t n_spanned(std::int32_t n) const;

    // While it lives libllama takes `end` for the end of its used cells, unless it fills higher ones.
    class [[nodiscard]] WiderSpan {
    public:
        WiderSpan(KvCells& cells, memory::Cell end);
        ~WiderSpan();
        WiderSpan(const WiderSpan&) = delete;
        WiderSpan& operator=(const WiderSpan&) = delete;

    private:
        KvCells& cells_;
        std::optional<memory::Cell> named_;  // in libllama's set, though it is not used
    };

    // Nobody sees more of what is held than that it is: holder_id() has no positions.
    void hold(std::span<const memory::Cell> cells);
    void release(std::span<const memory::Cell> cells);

    Result<void> find(std::int32_t sequence, Position begin, std::span<memory::Cell> cells) const;
    void add(std::int32_t sequence, std::span<const memory::Cell> cells);
    void remove(std::int32_t sequence, std::span<const memory::Cell> cells);
    void remove_from(std::int32_t sequence, Position begin);  // the positions from `begin` on
    void remove_all(std::int32_t sequence);

    // For one computation the branches, which hold nothing, see what the sequence sees from the position `from` on.
    // They are none of the sequence's equals: of what lies before its last position libllama may only ask the first
    // one.
    void lend(std::int32_t sequence, std::span<const std::int32_t> branches, Position from);

    // The end of it: of what was computed from `begin` on the sequence keeps the positions before `end` as one of them
    // (or itself) has them, and the branches hold nothing any more. Errors: internal (it does not have them all; then
    // the sequence keeps none).
    Result<void> take_back(std::int32_t sequence, std::span<const std::int32_t> branches, Position begin,
                           std::int32_t along, Position end);

    // The lowest free cells, in ascending order; they stay free. REQUIRES: there are as many.
    void lowest_free(std::span<memory::Cell> cells) const;

    // The lowest free cells, as lowest_free() gave them, become what computing `tokens` at the positions from `begin`
    // would have made of them, but that nobody sees them: they have to be held or added at once.
    void fill(Position begin, std::span<const Token> tokens, std::span<const memory::Cell> cells);

    // Where the rows of these cells, which are in ascending order, belong when they are set aside: as many as there are
    // higher free cells for, the lowest of them, in the highest free cells, in the same order; the others stay. And
    // when they are brought back: the highest of them, in the lowest free cells.
    std::vector<memory::Cell> highest_places(std::span<const memory::Cell> cells);
    std::vector<memory::Cell> lowest_places(std::span<const memory::Cell> cells) const;

    // The held cells `from`, which nobody sees, change places with the free cells `to`, where they differ, and are set
    // aside then, or are not. REQUIRES: highest_places() or lowest_places() gave `to`.
    void move(std::span<const memory::Cell> from, std::span<const memory::Cell> to, bool are_aside);

private:
    // Of a sequence: cells that it sees and libllama's set does not name, and the end of their positions.
    struct Unnamed {
        std::size_t n = 0;
        Position end = 0;
    };

    llama_kv_cells& cells() const;
    std::uint32_t& search_start() const;
    const Unnamed& unnamed(std::int32_t sequence) const;
    Unnamed& unnamed(std::int32_t sequence);
    bool is_named(std::int32_t sequence, memory::Cell cell) const;
    std::vector<memory::Cell> unnamed_cells(std::int32_t sequence) const;
    void vacate(std::span<const memory::Cell> cells);

    llama_kv_cache* cache_ = nullptr;
    bool has_2d_positions_ = false;
    std::vector<bool> is_aside_;
    std::int32_t n_aside_ = 0;
    memory::Cell limit_ = 0;
    memory::Cell free_end_ = 0;     // no cell from here on is free
    std::vector<Unnamed> unnamed_;  // of the sequences that have had some
};

}  // namespace luce::llama
