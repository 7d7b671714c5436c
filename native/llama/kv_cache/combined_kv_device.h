// CombinedKvDevice: the target's cells and a drafter's as one device, so that a page holds the rows of both and a
// checkpoint the states of both. Cells are named by the target's; the drafter's cell of the same row is looked up when
// a row is found or written. The bytes: the target's part, then the drafter's; a state ends with what the drafter
// carries over beside its cells.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "llama/drafting/draft_memory.h"
#include "llama/kv_cache/kv_device.h"
#include "memory/manager/kv_device.h"

namespace luce::llama {

class CombinedKvDevice final : public memory::KvDevice {
public:
    // Both must outlive it. REQUIRES: the drafter has cells, and its device refuses nothing.
    CombinedKvDevice(LlamaKvDevice& target, DraftMemory& draft);

    // After the devices have been bound to other contexts: nothing of before is there any more.
    void refresh();

    const memory::DeviceTraits& traits() const override { return traits_; }
    std::int32_t n_free_cells() const override;
    std::int32_t n_step_cells() const override { return target_.n_step_cells(); }
    std::int32_t n_cells() const override { return target_.n_cells(); }
    std::int32_t n_more_cells() const override { return target_.n_more_cells(); }
    bool resize(std::int32_t n_cells) override { return target_.resize(n_cells); }
    bool is_seen_from(memory::Cell first) const override { return target_.is_seen_from(first); }
    std::int32_t n_spanned_cells(std::int32_t n_more) const override { return target_.n_spanned_cells(n_more); }
    void set_aside(std::span<memory::Cell> cells) override;
    void bring_back(std::span<memory::Cell> cells) override;
    Result<void> find(LaneId lane, Position begin, std::span<memory::Cell> cells) override;
    void hold(std::span<const memory::Cell> cells) override;
    void release(std::span<const memory::Cell> cells) override;
    void show(LaneId lane, std::span<const memory::Cell> cells) override;
    void hide(LaneId lane, std::span<const memory::Cell> cells) override;
    Result<void> read(std::span<const memory::Cell> cells, std::span<std::uint8_t> out,
                      std::shared_ptr<const void> owner) override;
    void settle() override;
    std::size_t n_bytes_under_way() const override;
    memory::Bytes first_rows(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) override;
    Result<void> write(LaneId lane, Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                       std::int32_t n_rows, std::span<memory::Cell> cells) override;
    Result<void> place(Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                       std::shared_ptr<const void> owner, std::span<memory::Cell> cells) override;
    Result<void> save_state(LaneId lane, memory::Bytes& state, std::shared_ptr<const void> owner) override;
    Result<void> load_state(LaneId lane, std::span<const std::uint8_t> state) override;
    Result<void> drop(LaneId lane, Position begin) override;
    Result<void> save_point(LaneId lane, memory::Bytes& point, std::shared_ptr<const void> owner) override;
    Result<void> return_to(LaneId lane, Position begin, std::span<const std::uint8_t> point) override;
    void forget(LaneId lane) override;

private:
    Error odd_rows() const;
    void note(std::span<const memory::Cell> cells, std::span<const memory::Cell> of_draft);
    std::vector<memory::Cell> of_draft(std::span<const memory::Cell> cells) const;
    bool has_draft_state() const;

    LlamaKvDevice& target_;
    DraftMemory& draft_;
    memory::DeviceTraits traits_;
    std::vector<memory::Cell> draft_cells_;  // of each of the target's cells that has been found or written
};

}  // namespace luce::llama
