// LlamaKvDevice: the memory's KvDevice on libllama. A lane is a sequence id, a cell is a cell of the attention cache
// (of the layers without a sliding window, where some have one), the state is libllama's partial state: the recurrent
// layers', the sliding windows' cells. One thread only.
//
// After show(), write() and load_state() libllama takes the lane's next decode at the position after the last one, in
// whatever order they were called; where there is state, it has to be loaded, too: libllama would compute on from an
// empty one. Cells may be missing below the last position: attention does not see them, that is all. The last position
// itself must be there, because libllama asks that texts go on where they end.
#pragma once

#include "llama/decoding/context_owner.h"
#include "llama/device_copy/outbound_copies.h"
#include "llama/kv_cache/checkpoint_state.h"
#include "llama/kv_cache/kv_cells.h"
#include "llama/kv_cache/kv_rows.h"
#include "llama/kv_cache/memory_parts.h"
#include "llama/kv_cache/row_packer.h"
#include "memory/manager/kv_device.h"

namespace luce::llama {

// What of the device is in use, for people, benchmarks and tests.
struct KvUsage {
    std::int32_t n_used_cells = 0;     // and not set aside
    std::int32_t n_spanned_cells = 0;  // up to the highest used one: what attention runs over (padded)
    std::int32_t n_aside_cells = 0;
    std::size_t n_tensors = 0;  // one copy each for a run of cells
};

class LlamaKvDevice final : public memory::KvDevice {
public:
    // The owner must outlive the device.
    LlamaKvDevice(const ContextOwner& owner, std::int32_t n_lanes);

    // Before the model is unloaded: no cell is free nor used any more. traits() stays.
    void unbind();

    // Looks everything up again after the model has been loaded anew. Nothing of before is there any more.
    void rebind();

    KvUsage usage() const;

    // Of its rows; of a memory without any it packs nothing. REQUIRES: check_packed_type(type).
    RowPacker packer(const std::string& type) const;

    // While it lives, attention runs over a few cells more than a call of n_more tokens needs: the same number for many
    // calls. It is part of their graph, and a GPU waits for another one as long as for several steps.
    [[nodiscard]] KvCells::WiderSpan widen_span(std::int32_t n_more);

    // On which the rows lie, or the first of them; null: in the host's memory.
    ggml_backend_dev_t device() const;

    const memory::DeviceTraits& traits() const override { return traits_; }
    std::int32_t n_free_cells() const override { return cells_.n_free(); }
    std::int32_t n_step_cells() const override;
    std::int32_t n_cells() const override { return cells_.limit(); }
    std::int32_t n_more_cells() const override { return can_grow_ ? cells_.size() - cells_.limit() : 0; }
    bool resize(std::int32_t n_cells) override;
    bool is_seen_from(memory::Cell first) const override { return cells_.is_seen_from(first); }
    std::int32_t n_spanned_cells(std::int32_t n_more) const override { return cells_.n_spanned(n_more); }
    void set_aside(std::span<memory::Cell> cells) override { move(cells, true); }
    void bring_back(std::span<memory::Cell> cells) override { move(cells, false); }
    Result<void> find(LaneId lane, Position begin, std::span<memory::Cell> cells) override;
    void hold(std::span<const memory::Cell> cells) override;
    void release(std::span<const memory::Cell> cells) override;
    void show(LaneId lane, std::span<const memory::Cell> cells) override;
    void hide(LaneId lane, std::span<const memory::Cell> cells) override;
    Result<void> read(std::span<const memory::Cell> cells, std::span<std::uint8_t> out,
                      std::shared_ptr<const void> owner) override;
    void settle() override { copies_.wait(); }
    std::size_t n_bytes_under_way() const override { return copies_.n_bytes_under_way(); }
    memory::Bytes first_rows(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) override;
    Result<void> write(LaneId lane, Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                       std::int32_t n_rows, std::span<memory::Cell> cells) override;
    Result<void> place(Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                       std::shared_ptr<const void> owner, std::span<memory::Cell> cells) override;
    Result<void> save_state(LaneId lane, memory::Bytes& state, std::shared_ptr<const void> owner) override;
    // save_state() at the end of what `state` holds already.
    Result<void> append_state(LaneId lane, memory::Bytes& state, std::shared_ptr<const void> owner);
    Result<void> load_state(LaneId lane, std::span<const std::uint8_t> state) override;
    Result<void> drop(LaneId lane, Position begin) override;
    Result<void> save_point(LaneId lane, memory::Bytes& point, std::shared_ptr<const void> owner) override;
    Result<void> return_to(LaneId lane, Position begin, std::span<const std::uint8_t> point) override;
    void forget(LaneId lane) override;

private:
    Result<void> check(std::span<const Token> tokens, std::span<const std::uint8_t> rows, std::int32_t n_rows,
                       std::span<const memory::Cell> cells) const;
    void hold_back_computations();
    void use_all_cells();
    void wait_for_all();
    void move(std::span<memory::Cell> cells, bool are_aside);

    const ContextOwner& owner_;
    std::int32_t n_lanes_;
    memory::DeviceTraits traits_;
    MemoryParts parts_;
    ElasticCache* elastic_ = nullptr;  // null: all cells have memory for good
    bool can_grow_ = true;
    KvCells cells_;
    KvRows rows_;
    CheckpointState checkpoint_;
    OutboundCopies copies_;
    InboundCopies placed_;
};

}  // namespace luce::llama
