#include "llama/kv_device.h"

#include <string>

#include <llama.h>

#include "llama-model.h"

namespace luce::llama {
namespace {

using memory::Bytes;
using memory::Cell;

std::int32_t sequence(LaneId lane) { return static_cast<std::int32_t>(lane); }

Error wrong_size(std::size_t n_bytes, std::size_t expected) {
    return {ErrorCode::internal,
            "rows of " + std::to_string(n_bytes) + " bytes where " + std::to_string(expected) + " were expected"};
}

// Tokens' places in an image are noted in a cell where a position has three parts or more.
bool has_2d_positions(const llama_model* model) { return model->hparams.n_pos_per_embd() >= 3; }

}  // namespace

LlamaKvDevice::LlamaKvDevice(const Model& model, std::int32_t n_lanes) : model_(model), n_lanes_(n_lanes) { rebind(); }

void LlamaKvDevice::unbind() {
    traits_.n_cells = 0;
    cells_ = {};
    rows_ = {};
    tail_ = {};
}

void LlamaKvDevice::rebind() {
    const MemoryParts parts = memory_parts(model_.context(), model_.info().architecture, n_lanes_);
    traits_ = {};
    traits_.kind = parts.kind;
    traits_.refusal = parts.refusal;
    cells_ = {};
    rows_ = {};
    tail_ = {};
    if (parts.refusal) return;
    if (parts.paged != nullptr) {
        cells_ = KvCells(*parts.paged, has_2d_positions(model_.model()));
        rows_ = KvRows(*parts.paged);
    }
    tail_ = TailState(model_.context(), parts);
    traits_.n_cells = cells_.size();
    traits_.row_bytes = rows_.row_bytes();
    traits_.is_host_memory = rows_.is_host_memory();
    traits_.state_bytes = tail_.n_bytes();
}

KvUsage LlamaKvDevice::usage() const { return {cells_.n_used(), cells_.n_spanned(), rows_.n_tensors()}; }

Result<void> LlamaKvDevice::find(LaneId lane, Position begin, std::span<Cell> cells) const {
    return cells_.find(sequence(lane), begin, cells);
}

void LlamaKvDevice::hold(std::span<const Cell> cells) { cells_.add(holder_id(), cells); }
void LlamaKvDevice::release(std::span<const Cell> cells) { cells_.remove(holder_id(), cells); }
void LlamaKvDevice::show(LaneId lane, std::span<const Cell> cells) { cells_.add(sequence(lane), cells); }
void LlamaKvDevice::hide(LaneId lane, std::span<const Cell> cells) { cells_.remove(sequence(lane), cells); }

Result<void> LlamaKvDevice::read(std::span<const Cell> cells, std::span<std::uint8_t> out) const {
    const std::size_t n_bytes = cells.size() * traits_.row_bytes;
    if (out.size() != n_bytes) return wrong_size(out.size(), n_bytes);
    llama_synchronize(model_.context());  // GPUs may still be computing the rows
    rows_.read(cells, out.data());
    return {};
}

Result<void> LlamaKvDevice::write(LaneId lane, Position begin, std::span<const Token> tokens,
                                  std::span<const std::uint8_t> rows, std::int32_t n_rows, std::span<Cell> cells) {
    const std::size_t n_bytes = static_cast<std::size_t>(n_rows) * traits_.row_bytes;
    if (n_rows < 0 || rows.size() != n_bytes) return wrong_size(rows.size(), n_bytes);
    if (tokens.size() != cells.size() || cells.size() > static_cast<std::size_t>(n_rows)) {
        return Error{ErrorCode::internal, "rows, tokens and cells do not go together"};
    }
    if (cells.size() > static_cast<std::size_t>(n_free_cells())) {
        return Error{ErrorCode::no_room, "no free cells for " + std::to_string(cells.size()) + " positions"};
    }
    cells_.lowest_free(cells);
    llama_synchronize(model_.context());  // a computation that runs may still be reading what those cells held before
    rows_.write(cells, rows.data(), static_cast<std::size_t>(n_rows));
    cells_.fill(sequence(lane), begin, tokens, cells);
    return {};
}

Result<Bytes> LlamaKvDevice::save_state(LaneId lane) { return tail_.save(sequence(lane)); }

Result<void> LlamaKvDevice::load_state(LaneId lane, std::span<const std::uint8_t> state) {
    return tail_.load(sequence(lane), state);
}

// libllama's own removal knows all the parts, but searches the cells one by one; the holder's bit is none of the
// lane's.
void LlamaKvDevice::forget(LaneId lane) {
    cells_.remove_all(sequence(lane));
    llama_memory_seq_rm(llama_get_memory(model_.context()), sequence(lane), -1, -1);
}

}  // namespace luce::llama
