#include "llama/kv_cache/combined_kv_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace luce::llama {
namespace {

using memory::Bytes;
using memory::Cell;

// A state of both begins with the sizes of the target's part and of that of the drafter's cells.
using Head = std::array<std::uint64_t, 2>;
constexpr std::size_t kHead_bytes = sizeof(Head);

Error damaged() { return {ErrorCode::internal, "a saved state is not one of the model and its draft"}; }

}  // namespace

CombinedKvDevice::CombinedKvDevice(LlamaKvDevice& target, DraftMemory& draft) : target_(target), draft_(draft) {
    refresh();
}

void CombinedKvDevice::refresh() {
    const memory::DeviceTraits& of_draft = draft_.device().traits();
    traits_ = target_.traits();
    traits_.row_bytes += of_draft.row_bytes;
    traits_.n_window = std::max(traits_.n_window, of_draft.n_window);
    if (has_draft_state()) traits_.state_bytes += kHead_bytes + of_draft.state_bytes + draft_.state_bytes();
    traits_.kind += " and a draft's " + of_draft.kind;
    draft_cells_.assign(static_cast<std::size_t>(traits_.n_cells), 0);
}

std::int32_t CombinedKvDevice::n_free_cells() const {
    return std::min(target_.n_free_cells(), draft_.device().n_free_cells());
}

void CombinedKvDevice::set_aside(std::span<Cell> cells) {
    std::vector<Cell> cells_of_draft = of_draft(cells);
    target_.set_aside(cells);
    draft_.device().set_aside(cells_of_draft);
    note(cells, cells_of_draft);
}

void CombinedKvDevice::bring_back(std::span<Cell> cells) {
    std::vector<Cell> cells_of_draft = of_draft(cells);
    target_.bring_back(cells);
    draft_.device().bring_back(cells_of_draft);
    note(cells, cells_of_draft);
}

std::vector<Cell> CombinedKvDevice::of_draft(std::span<const Cell> cells) const {
    std::vector<Cell> found;
    found.reserve(cells.size());
    for (const Cell cell : cells) found.push_back(draft_cells_[cell]);
    return found;
}

Result<void> CombinedKvDevice::find(LaneId lane, Position begin, std::span<Cell> cells) {
    if (Result<void> found = target_.find(lane, begin, cells); !found) return found;
    if (Result<void> there = draft_.catch_up(lane); !there) return there;
    std::vector<Cell> of_draft(cells.size());
    if (Result<void> found = draft_.device().find(lane, begin, of_draft); !found) return found;
    note(cells, of_draft);
    return {};
}

void CombinedKvDevice::hold(std::span<const Cell> cells) {
    target_.hold(cells);
    draft_.device().hold(of_draft(cells));
}

void CombinedKvDevice::release(std::span<const Cell> cells) {
    target_.release(cells);
    draft_.device().release(of_draft(cells));
}

void CombinedKvDevice::show(LaneId lane, std::span<const Cell> cells) {
    target_.show(lane, cells);
    draft_.device().show(lane, of_draft(cells));
}

void CombinedKvDevice::hide(LaneId lane, std::span<const Cell> cells) {
    target_.hide(lane, cells);
    draft_.device().hide(lane, of_draft(cells));
}

Result<void> CombinedKvDevice::read(std::span<const Cell> cells, std::span<std::uint8_t> out,
                                    std::shared_ptr<const void> owner) {
    const std::size_t n_target = cells.size() * target_.traits().row_bytes;
    if (out.size() != cells.size() * traits_.row_bytes) {
        return Error{ErrorCode::internal, "the rows' bytes and the cells do not go together"};
    }
    if (Result<void> read = target_.read(cells, out.first(n_target), owner); !read) return read;
    return draft_.device().read(of_draft(cells), out.subspan(n_target), std::move(owner));
}

void CombinedKvDevice::settle() {
    target_.settle();
    draft_.device().settle();
}

std::size_t CombinedKvDevice::n_bytes_under_way() const {
    return target_.n_bytes_under_way() + draft_.device().n_bytes_under_way();
}

Bytes CombinedKvDevice::first_rows(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) {
    const std::size_t n_target = n_rows * target_.traits().row_bytes;
    Bytes first = target_.first_rows(rows.first(n_target), n_rows, n);
    const Bytes of_draft = draft_.device().first_rows(rows.subspan(n_target), n_rows, n);
    first.insert(first.end(), of_draft.begin(), of_draft.end());
    return first;
}

Result<void> CombinedKvDevice::write(LaneId lane, Position begin, std::span<const Token> tokens,
                                     std::span<const std::uint8_t> rows, std::int32_t n_rows, std::span<Cell> cells) {
    if (n_rows < 0 || rows.size() != static_cast<std::size_t>(n_rows) * traits_.row_bytes) return odd_rows();
    const std::size_t n_target = static_cast<std::size_t>(n_rows) * target_.traits().row_bytes;
    if (Result<void> written = target_.write(lane, begin, tokens, rows.first(n_target), n_rows, cells); !written) {
        return written;
    }
    std::vector<Cell> of_draft(cells.size());
    Result<void> written = draft_.device().write(lane, begin, tokens, rows.subspan(n_target), n_rows, of_draft);
    if (!written) {
        target_.hide(lane, cells);
        return written;
    }
    note(cells, of_draft);
    return {};
}

Result<void> CombinedKvDevice::place(Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                                     std::shared_ptr<const void> owner, std::span<Cell> cells) {
    if (rows.size() != cells.size() * traits_.row_bytes) return odd_rows();
    const std::size_t n_target = cells.size() * target_.traits().row_bytes;
    if (Result<void> placed = target_.place(begin, tokens, rows.first(n_target), owner, cells); !placed) return placed;
    std::vector<Cell> of_draft(cells.size());
    Result<void> placed = draft_.device().place(begin, tokens, rows.subspan(n_target), std::move(owner), of_draft);
    if (!placed) {
        target_.release(cells);
        return placed;
    }
    note(cells, of_draft);
    return {};
}

Error CombinedKvDevice::odd_rows() const {
    return {ErrorCode::internal, "the rows' bytes are not those of a model and its draft"};
}

void CombinedKvDevice::note(std::span<const Cell> cells, std::span<const Cell> of_draft) {
    for (std::size_t i = 0; i < cells.size(); ++i) draft_cells_[cells[i]] = of_draft[i];
}

bool CombinedKvDevice::has_draft_state() const {
    return draft_.device().traits().has_state() || draft_.state_bytes() > 0;
}

Result<void> CombinedKvDevice::save_state(LaneId lane, Bytes& state, std::shared_ptr<const void> owner) {
    if (!has_draft_state()) return target_.save_state(lane, state, std::move(owner));
    if (Result<void> there = draft_.catch_up(lane); !there) return there;
    const Result<std::vector<std::uint8_t>> carried = draft_.save_state(lane);
    if (!carried) return carried.error();
    state.clear();
    state.reserve(traits_.state_bytes);  // copies go on into it after this returns: it must not move
    state.resize(kHead_bytes);
    const std::uint8_t* const begin = state.data();
    Head head = {};
    if (target_.traits().has_state()) {
        if (Result<void> saved = target_.append_state(lane, state, owner); !saved) return saved;
    }
    head[0] = state.size() - kHead_bytes;
    if (draft_.device().traits().has_state()) {
        if (Result<void> saved = draft_.device().append_state(lane, state, std::move(owner)); !saved) return saved;
    }
    head[1] = state.size() - kHead_bytes - head[0];
    const std::size_t n_before = state.size();
    state.resize(n_before + carried.value().size());
    if (state.data() != begin) {
        settle();
        return Error{ErrorCode::internal, "a lane's state is larger than was known"};
    }
    std::copy(carried.value().begin(), carried.value().end(), state.begin() + static_cast<std::ptrdiff_t>(n_before));
    std::memcpy(state.data(), head.data(), kHead_bytes);
    return {};
}

Result<void> CombinedKvDevice::load_state(LaneId lane, std::span<const std::uint8_t> state) {
    if (!has_draft_state()) return target_.load_state(lane, state);
    settle();
    if (state.size() < kHead_bytes) return damaged();
    Head head = {};
    std::memcpy(head.data(), state.data(), kHead_bytes);
    const std::span<const std::uint8_t> parts = state.subspan(kHead_bytes);
    if (head[0] > parts.size() || head[1] > parts.size() - head[0]) return damaged();
    const bool target_fits = (head[0] > 0) == target_.traits().has_state();
    const bool cells_fit = (head[1] > 0) == draft_.device().traits().has_state();
    if (!target_fits || !cells_fit || parts.size() - head[0] - head[1] != draft_.state_bytes()) return damaged();
    Result<void> loaded;
    if (head[0] > 0) loaded = target_.load_state(lane, parts.first(head[0]));
    if (loaded && head[1] > 0) loaded = draft_.device().load_state(lane, parts.subspan(head[0], head[1]));
    if (loaded) loaded = draft_.load_state(lane, parts.subspan(head[0] + head[1]));
    return loaded;
}

// A draft has not read yet what is not known to stay.
Result<void> CombinedKvDevice::drop(LaneId lane, Position begin) { return target_.drop(lane, begin); }

Result<void> CombinedKvDevice::save_point(LaneId lane, Bytes& point, std::shared_ptr<const void> owner) {
    return target_.save_point(lane, point, std::move(owner));
}

Result<void> CombinedKvDevice::return_to(LaneId lane, Position begin, std::span<const std::uint8_t> point) {
    return target_.return_to(lane, begin, point);
}

void CombinedKvDevice::forget(LaneId lane) {
    target_.forget(lane);
    draft_.device().forget(lane);
}

}  // namespace luce::llama
