#include "llama/kv_cache/kv_device.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include <llama.h>

#include "base/log.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "llama/experts/elastic_cache.h"
#include "llama/model/sequence.h"

namespace luce::llama {
namespace {

using memory::Bytes;
using memory::Cell;

Error wrong_size(std::size_t n_bytes, std::size_t expected) {
    return {ErrorCode::internal,
            "rows of " + std::to_string(n_bytes) + " bytes where " + std::to_string(expected) + " were expected"};
}

// What can be staged on a device on its way to the host: states of lanes that end together, up to so many bytes but one
// at least, and some pages. Each piece begins at a multiple of the alignment.
constexpr std::size_t kStagedStates = 4;
constexpr std::size_t kStagedStates_bytes = std::size_t{256} << 20;
constexpr std::size_t kStagedPages = 8;
constexpr std::size_t kStagedAlignment = 256;

// Of cells that attention runs over, on a GPU; llama.cpp's own is 256.
constexpr std::uint32_t kLeastSpanStep = 1024;
constexpr std::uint32_t kMostSpanStep = 4096;

std::size_t n_staged_bytes(const memory::DeviceTraits& traits, std::size_t n_tensors) {
    const std::size_t state_bytes = traits.state_bytes + n_tensors * kStagedAlignment;
    const std::size_t states_bytes = std::max(state_bytes, std::min(kStagedStates * state_bytes, kStagedStates_bytes));
    return states_bytes + kStagedPages * (memory::kPageSize * traits.row_bytes + n_tensors * kStagedAlignment);
}

std::vector<ggml_tensor*> state_tensors(const MemoryParts& parts) {
    std::vector<ggml_tensor*> tensors;
    if (parts.window != nullptr) tensors = KvRows(*parts.window).tensors();
    if (parts.recurrent != nullptr) {
        for (const auto* of_layers : {&parts.recurrent->r_l, &parts.recurrent->s_l, &parts.recurrent->p_l}) {
            std::copy_if(of_layers->begin(), of_layers->end(), std::back_inserter(tensors),
                         [](const ggml_tensor* tensor) { return tensor != nullptr; });
        }
    }
    return tensors;
}

// Tokens' places in an image are noted in a cell where a position has three parts or more.
bool has_2d_positions(const llama_model* model) { return model->hparams.n_pos_per_embd() >= 3; }

}  // namespace

LlamaKvDevice::LlamaKvDevice(const ContextOwner& owner, std::int32_t n_lanes) : owner_(owner), n_lanes_(n_lanes) {
    rebind();
}

void LlamaKvDevice::unbind() {
    copies_.close();
    placed_.close();
    traits_.n_cells = 0;
    parts_ = {};
    cells_ = {};
    rows_ = {};
    checkpoint_ = {};
    elastic_ = nullptr;
}

void LlamaKvDevice::rebind() {
    copies_.close();
    placed_.close();
    elastic_ = owner_.elastic_cache();
    can_grow_ = true;
    parts_ = memory_parts(owner_.context(), owner_.architecture(), n_lanes_);
    traits_ = {};
    traits_.kind = parts_.kind;
    traits_.refusal = parts_.refusal;
    cells_ = {};
    rows_ = {};
    checkpoint_ = {};
    if (parts_.refusal) return use_all_cells();
    if (parts_.paged != nullptr) {
        cells_ = KvCells(*parts_.paged, has_2d_positions(llama_get_model(owner_.context())));
        rows_ = KvRows(*parts_.paged);
        if (elastic_ != nullptr) cells_.set_limit(static_cast<Cell>(elastic_->n_cells()));
    }
    checkpoint_ = CheckpointState(owner_.context(), parts_);
    traits_.n_cells = cells_.size();
    traits_.row_bytes = rows_.row_bytes();
    if (parts_.window != nullptr) traits_.n_window = llama_model_n_swa(llama_get_model(owner_.context()));
    traits_.is_host_memory = rows_.is_host_memory();
    traits_.state_bytes = checkpoint_.n_bytes();
    traits_.n_rollback = parts_.recurrent == nullptr ? std::numeric_limits<std::int32_t>::max()
                                                     : static_cast<std::int32_t>(parts_.recurrent->n_rs_seq);
    std::vector<ggml_tensor*> tensors = rows_.tensors();
    placed_.open(tensors);
    const std::vector<ggml_tensor*> of_state = state_tensors(parts_);
    tensors.insert(tensors.end(), of_state.begin(), of_state.end());
    copies_.open(tensors, n_staged_bytes(traits_, tensors.size()));
}

ggml_backend_dev_t LlamaKvDevice::device() const {
    const std::vector<ggml_tensor*> tensors = rows_.tensors();
    const auto elsewhere = [](const ggml_tensor* tensor) { return device_holding(tensor) != nullptr; };
    const auto first = std::find_if(tensors.begin(), tensors.end(), elsewhere);
    return first == tensors.end() ? nullptr : device_holding(*first);
}

// Reading a masked cell takes some 10 ns of a GPU, another graph 10 to 20 ms, which one cell a lane and step brings
// nearer.
KvCells::WiderSpan LlamaKvDevice::widen_span(std::int32_t n_more) {
    const auto end = static_cast<std::uint32_t>(cells_.n_spanned(n_more));
    const std::uint32_t step = std::clamp(std::bit_ceil(end / 16), kLeastSpanStep, kMostSpanStep);
    const std::uint32_t padded = (end + step - 1) / step * step;
    return {cells_, std::min(padded, static_cast<std::uint32_t>(cells_.limit()))};
}

std::int32_t LlamaKvDevice::n_step_cells() const {
    return elastic_ != nullptr && cells_.size() > 0 ? elastic_->n_step() : 0;
}

// Nobody keeps account of them.
void LlamaKvDevice::use_all_cells() {
    if (elastic_ == nullptr) return;
    const Result<void> resized = elastic_->resize(elastic_->n_most());
    if (!resized) throw std::runtime_error("no memory for the attention cache: " + resized.error().text);
}

void LlamaKvDevice::wait_for_all() {
    placed_.wait();
    settle();
    llama_synchronize(owner_.context());
}

bool LlamaKvDevice::resize(std::int32_t n_cells) {
    if (n_cells < cells_.limit() && !cells_.are_free_from(static_cast<Cell>(n_cells))) return false;
    wait_for_all();
    if (const Result<void> resized = elastic_->resize(n_cells); !resized) {
        log_warn("the attention cache gets no more memory: texts that are idle leave it sooner, and requests wait: " +
                 resized.error().text);
        can_grow_ = false;
        return false;
    }
    cells_.set_limit(static_cast<Cell>(n_cells));
    return true;
}

RowPacker LlamaKvDevice::packer(const std::string& type) const {
    return parts_.paged == nullptr ? RowPacker() : RowPacker(*parts_.paged, type);
}

KvUsage LlamaKvDevice::usage() const {
    return {cells_.n_used(), cells_.n_spanned(0), cells_.n_aside(), rows_.n_tensors()};
}

Result<void> LlamaKvDevice::find(LaneId lane, Position begin, std::span<Cell> cells) {
    return cells_.find(sequence(lane), begin, cells);
}

void LlamaKvDevice::hold(std::span<const Cell> cells) { cells_.hold(cells); }
void LlamaKvDevice::release(std::span<const Cell> cells) {
    placed_.wait();  // others may be put there
    hold_back_computations();
    cells_.release(cells);
}
void LlamaKvDevice::show(LaneId lane, std::span<const Cell> cells) {
    placed_.wait();
    cells_.add(sequence(lane), cells);
}
void LlamaKvDevice::hide(LaneId lane, std::span<const Cell> cells) {
    hold_back_computations();
    cells_.remove(sequence(lane), cells);
}

// Among the computations. What lay in a free cell may still be on its way out, as may what moves: they wait for that.
void LlamaKvDevice::move(std::span<Cell> cells, bool are_aside) {
    std::vector<std::pair<Cell, std::size_t>> order;  // ascending cells, and which of `cells` each is
    for (std::size_t i = 0; i < cells.size(); ++i) order.emplace_back(cells[i], i);
    std::sort(order.begin(), order.end());
    std::vector<Cell> from;
    for (const auto& [cell, index] : order) from.push_back(cell);
    const std::vector<Cell> to = are_aside ? cells_.highest_places(from) : cells_.lowest_places(from);
    placed_.wait();
    hold_back_computations();
    CopiesWithin copies(owner_.context()->get_sched(), [this] {
        settle();
        llama_synchronize(owner_.context());
    });
    rows_.move(from, to, copies);
    cells_.move(from, to, are_aside);
    for (std::size_t i = 0; i < to.size(); ++i) cells[order[i].second] = to[i];
}

// What lies in cells that become free may still be on its way to the host, and the next computation may take them: the
// device begins it when that has been read.
void LlamaKvDevice::hold_back_computations() { copies_.hold_back(owner_.context()->get_sched()); }

Result<void> LlamaKvDevice::read(std::span<const Cell> cells, std::span<std::uint8_t> out,
                                 std::shared_ptr<const void> owner) {
    const std::size_t n_bytes = cells.size() * traits_.row_bytes;
    if (out.size() != n_bytes) return wrong_size(out.size(), n_bytes);
    placed_.wait();
    const std::vector<OutboundCopies::Piece> pieces = rows_.pieces(cells, out.data());
    // Of less than a page while a prompt is read, at a checkpoint within it: the next slice need not wait.
    const bool is_part = cells.size() < static_cast<std::size_t>(memory::kPageSize);
    if (is_part && copies_.start_behind(owner_.context()->get_sched(), pieces, owner)) return {};
    llama_synchronize(owner_.context());  // GPUs may still be computing the rows
    copies_.start_lasting(pieces, owner);
    return {};
}

Bytes LlamaKvDevice::first_rows(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) {
    settle();
    return rows_.first(rows, n_rows, n);
}

Result<void> LlamaKvDevice::check(std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                                  std::int32_t n_rows, std::span<const Cell> cells) const {
    const std::size_t n_bytes = static_cast<std::size_t>(n_rows) * traits_.row_bytes;
    if (n_rows < 0 || rows.size() != n_bytes) return wrong_size(rows.size(), n_bytes);
    if (tokens.size() != cells.size() || cells.size() > static_cast<std::size_t>(n_rows)) {
        return Error{ErrorCode::internal, "rows, tokens and cells do not go together"};
    }
    if (cells.size() > static_cast<std::size_t>(n_free_cells())) {
        return Error{ErrorCode::no_room, "no free cells for " + std::to_string(cells.size()) + " positions"};
    }
    return {};
}

Result<void> LlamaKvDevice::write(LaneId lane, Position begin, std::span<const Token> tokens,
                                  std::span<const std::uint8_t> rows, std::int32_t n_rows, std::span<Cell> cells) {
    if (Result<void> fits = check(tokens, rows, n_rows, cells); !fits) return fits;
    settle();
    cells_.lowest_free(cells);
    llama_synchronize(owner_.context());  // a computation that runs may still be reading what those cells held before
    rows_.write(cells, rows.data(), static_cast<std::size_t>(n_rows));
    cells_.fill(begin, tokens, cells);
    cells_.add(sequence(lane), cells);
    return {};
}

// Nobody attends to free cells, so they can be filled while others are computed with.
Result<void> LlamaKvDevice::place(Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                                  std::shared_ptr<const void> owner, std::span<Cell> cells) {
    const auto n_rows = static_cast<std::int32_t>(cells.size());
    if (Result<void> fits = check(tokens, rows, n_rows, cells); !fits) return fits;
    copies_.wait_for(rows);
    cells_.lowest_free(cells);
    // A computation that runs may still be reading what those cells held before; and what they held when they became
    // free may still be on its way out, which computations wait for.
    llama_synchronize(owner_.context());
    placed_.start(rows_.inbound_pieces(cells, rows.data()), std::move(owner));
    cells_.fill(begin, tokens, cells);
    cells_.hold(cells);
    return {};
}

Result<void> LlamaKvDevice::save_state(LaneId lane, Bytes& state, std::shared_ptr<const void> owner) {
    state.clear();
    return append_state(lane, state, std::move(owner));
}

Result<void> LlamaKvDevice::append_state(LaneId lane, Bytes& state, std::shared_ptr<const void> owner) {
    const Result<CheckpointState::Saving> saving = checkpoint_.save(sequence(lane), state);
    if (!saving) return saving.error();
    using Kept = std::pair<std::shared_ptr<const void>, std::shared_ptr<const std::vector<std::uint8_t>>>;
    const auto kept = std::make_shared<const Kept>(std::move(owner), saving.value().heads);
    if (copies_.start_behind(owner_.context()->get_sched(), saving.value().pieces, kept)) return {};
    llama_synchronize(owner_.context());
    copies_.start(saving.value().pieces, kept);
    return {};
}

Result<void> LlamaKvDevice::load_state(LaneId lane, std::span<const std::uint8_t> state) {
    settle();
    llama_synchronize(owner_.context());  // a computation that runs may be of a lane whose cells these become
    return checkpoint_.load(sequence(lane), state);
}

// libllama's own removal from a position on searches all cells of the pool.
Result<void> LlamaKvDevice::drop(LaneId lane, Position begin) {
    hold_back_computations();
    cells_.remove_from(sequence(lane), begin);
    const bool has_window = parts_.window == nullptr || parts_.window->seq_rm(sequence(lane), begin, -1);
    const bool has_state = parts_.recurrent == nullptr || parts_.recurrent->seq_rm(sequence(lane), begin, -1);
    if (has_window && has_state) return {};
    return Error{ErrorCode::internal, "lane " + std::to_string(sequence(lane)) +
                                          " could not be taken back to position " + std::to_string(begin)};
}

Result<void> LlamaKvDevice::save_point(LaneId lane, Bytes& point, std::shared_ptr<const void> owner) {
    return save_state(lane, point, std::move(owner));
}

Result<void> LlamaKvDevice::return_to(LaneId lane, Position begin, std::span<const std::uint8_t> point) {
    hold_back_computations();
    cells_.remove_from(sequence(lane), begin);
    return load_state(lane, point);
}

// libllama's own removal searches all cells of the pool; the holder's bit is none of the lane's.
void LlamaKvDevice::forget(LaneId lane) {
    hold_back_computations();
    cells_.remove_all(sequence(lane));
    if (parts_.window != nullptr) parts_.window->seq_rm(sequence(lane), -1, -1);
    if (parts_.recurrent != nullptr) parts_.recurrent->seq_rm(sequence(lane), -1, -1);
}

}  // namespace luce::llama
