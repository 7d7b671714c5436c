// KvDevice: the memory's border with the device: the cells of the attention cache, a row of K and V in each, and the
// state that cannot be cut by position. `llama/` implements it for libllama; tests implement it with arithmetic.
//
// A cell is free, or it holds the row of one position and is seen by any number of lanes and held or not. It becomes
// free when no lane sees it and it is not held. Computing (Decoder) puts new rows into free cells that its lane sees.
//
// A computation looks at all cells up to the highest used one, whoever's they are. So held rows that no lane sees can
// be set aside: they lie in the highest cells, and there they are not used. What is computed takes the lowest cells.
// All calls come from the one thread that runs the engine. A computation may be under way on the device: who reads or
// changes what it uses waits for it, or follows it on its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "memory/tiers/blob.h"

namespace luce::memory {

using Cell = std::uint32_t;

struct DeviceTraits {
    std::int32_t n_cells = 0;            // in all; 0 where the model has no attention cache (purely recurrent)
    std::size_t row_bytes = 0;           // of one position, K and V of all paged layers
    std::int32_t n_window = 0;           // positions that sliding-window layers keep of each lane; 0: there are none
    bool is_host_memory = false;         // where the rows lie: a copy to the host and back costs next to nothing
    std::size_t state_bytes = 0;         // an estimate of save_state()'s size; 0: pure attention, which has none
    std::int32_t n_rollback = 0;         // drop() takes back so many positions of the last computation
    std::string kind;                    // of memory, for people: "attention", "hybrid", "sliding window", …
    std::optional<std::string> refusal;  // why this memory cannot be paged; then nothing else may be called

    bool has_state() const { return state_bytes > 0; }

    // Beyond any state that is one: what is read from files is measured by it before memory is taken.
    std::size_t max_state_bytes() const { return 2 * state_bytes; }
};

class KvDevice {
public:
    virtual ~KvDevice() = default;

    virtual const DeviceTraits& traits() const = 0;

    virtual std::int32_t n_free_cells() const = 0;

    // Of a device whose cells' memory serves something else while they are not used: the first n_cells() may be used,
    // as many more when resize() is asked for them. The unit of it; 0: all may be used, for good.
    virtual std::int32_t n_step_cells() const { return 0; }
    virtual std::int32_t n_cells() const { return traits().n_cells; }
    // That resize() can bring: none once it could not.
    virtual std::int32_t n_more_cells() const { return 0; }

    // More cells may be used, or fewer. REQUIRES: a multiple of the unit, or all; fewer: no lane sees one of the
    // others, and nothing is held there. False: it could not, and all is as before.
    virtual bool resize(std::int32_t /*n_cells*/) { return false; }
    virtual bool is_seen_from(Cell /*first*/) const { return true; }

    // Those that a computation looks at, once n_more rows are there: up to the highest used one. REQUIRES: so many are
    // free.
    virtual std::int32_t n_spanned_cells(std::int32_t n_more) const = 0;

    // Rows that are held and that nobody sees, or that are set aside already, move into the highest free cells, as far
    // as those are higher than their own, and are used no more. `cells` says afterwards where they are. They may be
    // read and released as before, but not shown.
    virtual void set_aside(std::span<Cell> cells) = 0;

    // Rows that are held and that nobody sees, set aside or not, move into the lowest free cells, if those are lower.
    virtual void bring_back(std::span<Cell> cells) = 0;

    // The cells of the lane's positions begin … begin + cells.size() - 1, in this order. Errors: internal (the lane
    // does not hold them all).
    virtual Result<void> find(LaneId lane, Position begin, std::span<Cell> cells) = 0;

    // Keep the cells whoever sees them; release() undoes it. REQUIRES: they hold rows; not held yet (held).
    virtual void hold(std::span<const Cell> cells) = 0;
    virtual void release(std::span<const Cell> cells) = 0;

    // Let the lane see the cells, or see them no more. REQUIRES: they hold rows that are not the lane's yet (are its).
    virtual void show(LaneId lane, std::span<const Cell> cells) = 0;
    virtual void hide(LaneId lane, std::span<const Cell> cells) = 0;

    // Copies the cells' rows out: out.size() == cells.size() * row_bytes. The layout is the device's own; its only use
    // is in write() and first_rows(). The cells may change as soon as it returns, but the bytes need not have come
    // before settle(): until then the device keeps `owner`, to whom they belong. It waits by itself where it is given
    // such bytes again.
    virtual Result<void> read(std::span<const Cell> cells, std::span<std::uint8_t> out,
                              std::shared_ptr<const void> owner) = 0;

    // Until all bytes that were read and saved before have come. From any thread.
    virtual void settle() = 0;

    // That have not come yet.
    virtual std::size_t n_bytes_under_way() const = 0;

    // The first n of n_rows rows that read() gave, as if only they had been read.
    virtual Bytes first_rows(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) = 0;

    // Put the first cells.size() rows of `rows` (which holds n_rows of them, from read()) into free cells, the lowest,
    // as the positions from `begin`, whose tokens are `tokens`; the lane sees them. Fills in `cells`. Errors: no_room
    // (nothing has changed), internal.
    virtual Result<void> write(LaneId lane, Position begin, std::span<const Token> tokens,
                               std::span<const std::uint8_t> rows, std::int32_t n_rows, std::span<Cell> cells) = 0;

    // The same of all of the rows, but nobody sees the cells: they are held. The bytes need not have come when it
    // returns; until then the device keeps `owner`, to whom they belong. It waits by itself where the cells are shown,
    // read or released. Errors: no_room (nothing has changed), internal.
    virtual Result<void> place(Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                               std::shared_ptr<const void> owner, std::span<Cell> cells) = 0;

    // The lane's state outside the cells, and back, bit-exactly. REQUIRES: has_state(). Saving gives `state`, which
    // belongs to `owner`, its size, and its bytes as read() does. Errors: internal, out_of_memory; after a failed load
    // the lane has to be forgotten.
    virtual Result<void> save_state(LaneId lane, Bytes& state, std::shared_ptr<const void> owner) = 0;
    virtual Result<void> load_state(LaneId lane, std::span<const std::uint8_t> state) = 0;

    // Takes back the lane's positions from `begin` on, as if they had never been computed. REQUIRES: the last
    // computation computed them and the one before them, and they are at most n_rollback. Errors: internal; the lane
    // has to be forgotten then.
    virtual Result<void> drop(LaneId lane, Position begin) = 0;

    // For taking back more than that: a copy of the lane's state before a computation, and the lane as it was then,
    // when it held positions up to `begin` only. `point` belongs to `owner`, as save_state()'s. REQUIRES: has_state().
    // Errors: internal, out_of_memory; after a failed return_to() the lane has to be forgotten.
    virtual Result<void> save_point(LaneId lane, Bytes& point, std::shared_ptr<const void> owner) = 0;
    virtual Result<void> return_to(LaneId lane, Position begin, std::span<const std::uint8_t> point) = 0;

    // The lane sees nothing and has no state any more.
    virtual void forget(LaneId lane) = 0;
};

}  // namespace luce::memory
