// PackedKvDevice: a device whose rows take fewer bits wherever they lie outside of it: in the host's memory, on disk,
// in files. What comes back is not to the bit what went out. Rows of which the packer knows nothing (a draft's, behind
// the target's) stay as they are, as do states.
//
// What has been read is packed beside the caller, what is put back is unpacked while it waits; both by several threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "llama/kv_cache/row_packer.h"
#include "llama/sampling/worker_pool.h"
#include "memory/manager/kv_device.h"

namespace luce::llama {

class PackedKvDevice final : public memory::KvDevice {
public:
    // `inner`, whose rows begin with those of the packer's tensors, must outlive it.
    PackedKvDevice(memory::KvDevice& inner, RowPacker packer, std::size_t n_threads);
    ~PackedKvDevice() override;
    PackedKvDevice(const PackedKvDevice&) = delete;
    PackedKvDevice& operator=(const PackedKvDevice&) = delete;

    // After `inner` has been bound to another context of the same model and types.
    void refresh();

    const memory::DeviceTraits& traits() const override { return traits_; }
    std::int32_t n_free_cells() const override { return inner_.n_free_cells(); }
    std::int32_t n_step_cells() const override { return inner_.n_step_cells(); }
    std::int32_t n_cells() const override { return inner_.n_cells(); }
    std::int32_t n_more_cells() const override { return inner_.n_more_cells(); }
    bool resize(std::int32_t n_cells) override { return inner_.resize(n_cells); }
    bool is_seen_from(memory::Cell first) const override { return inner_.is_seen_from(first); }
    std::int32_t n_spanned_cells(std::int32_t n_more) const override { return inner_.n_spanned_cells(n_more); }
    void set_aside(std::span<memory::Cell> cells) override { inner_.set_aside(cells); }
    void bring_back(std::span<memory::Cell> cells) override { inner_.bring_back(cells); }
    Result<void> find(LaneId lane, Position begin, std::span<memory::Cell> cells) override {
        return inner_.find(lane, begin, cells);
    }
    void hold(std::span<const memory::Cell> cells) override { inner_.hold(cells); }
    void release(std::span<const memory::Cell> cells) override { inner_.release(cells); }
    void show(LaneId lane, std::span<const memory::Cell> cells) override { inner_.show(lane, cells); }
    void hide(LaneId lane, std::span<const memory::Cell> cells) override { inner_.hide(lane, cells); }
    Result<void> read(std::span<const memory::Cell> cells, std::span<std::uint8_t> out,
                      std::shared_ptr<const void> owner) override;
    void settle() override;
    std::size_t n_bytes_under_way() const override { return inner_.n_bytes_under_way() + n_unpacked_bytes_; }
    memory::Bytes first_rows(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) override;
    Result<void> write(LaneId lane, Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                       std::int32_t n_rows, std::span<memory::Cell> cells) override;
    Result<void> place(Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                       std::shared_ptr<const void> owner, std::span<memory::Cell> cells) override;
    Result<void> save_state(LaneId lane, memory::Bytes& state, std::shared_ptr<const void> owner) override {
        return inner_.save_state(lane, state, std::move(owner));
    }
    Result<void> load_state(LaneId lane, std::span<const std::uint8_t> state) override {
        return inner_.load_state(lane, state);
    }
    Result<void> drop(LaneId lane, Position begin) override { return inner_.drop(lane, begin); }
    Result<void> save_point(LaneId lane, memory::Bytes& point, std::shared_ptr<const void> owner) override {
        return inner_.save_point(lane, point, std::move(owner));
    }
    Result<void> return_to(LaneId lane, Position begin, std::span<const std::uint8_t> point) override {
        return inner_.return_to(lane, begin, point);
    }
    void forget(LaneId lane) override { inner_.forget(lane); }

private:
    struct Job {
        std::shared_ptr<memory::Bytes> raw;
        std::size_t n_rows = 0;
        std::span<std::uint8_t> out;
        std::shared_ptr<const void> owner;  // of `out`
    };

    Result<std::shared_ptr<memory::Bytes>> unpack(std::span<const std::uint8_t> rows, std::size_t n_rows);
    std::size_t rest_bytes() const { return inner_.traits().row_bytes - packer_.raw_row_bytes(); }
    void pack(const Job& job) const;
    void run();

    memory::KvDevice& inner_;
    RowPacker packer_;
    memory::DeviceTraits traits_;
    WorkerPool unpackers_;
    mutable WorkerPool packers_;

    std::atomic<std::size_t> n_unpacked_bytes_ = 0;  // that have been asked for and are not there yet
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;  // the first is under way
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace luce::llama
