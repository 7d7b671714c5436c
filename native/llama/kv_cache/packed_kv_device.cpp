#include "llama/kv_cache/packed_kv_device.h"

#include <cstring>
#include <utility>

namespace luce::llama {

using memory::Bytes;
using memory::Cell;

PackedKvDevice::PackedKvDevice(memory::KvDevice& inner, RowPacker packer, std::size_t n_threads)
    : inner_(inner), packer_(std::move(packer)), unpackers_(n_threads), packers_((n_threads + 1) / 2), thread_([this] {
          run();
      }) {
    refresh();
}

PackedKvDevice::~PackedKvDevice() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

// Idle texts need not leave the pool early any more: that costs bits now.
void PackedKvDevice::refresh() {
    traits_ = inner_.traits();
    traits_.row_bytes = packer_.row_bytes() + rest_bytes();
    traits_.is_host_memory = false;
}

Result<void> PackedKvDevice::read(std::span<const Cell> cells, std::span<std::uint8_t> out,
                                  std::shared_ptr<const void> owner) {
    if (out.size() != cells.size() * traits_.row_bytes) {
        return Error{ErrorCode::internal, "rows of another size than packed ones"};
    }
    auto raw = std::make_shared<Bytes>(cells.size() * inner_.traits().row_bytes);
    if (Result<void> begun = inner_.read(cells, *raw, raw); !begun) return begun;
    n_unpacked_bytes_ += out.size();
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back({std::move(raw), cells.size(), out, std::move(owner)});
    }
    changed_.notify_all();
    return {};
}

void PackedKvDevice::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_closing_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        const Job& job = jobs_.front();  // others are put behind it
        lock.unlock();
        inner_.settle();
        pack(job);
        n_unpacked_bytes_ -= job.out.size();
        lock.lock();
        jobs_.pop_front();
        changed_.notify_all();
    }
}

void PackedKvDevice::pack(const Job& job) const {
    const std::uint8_t* raw = job.raw->data();
    packers_.run(packer_.n_tensors(), [&](std::size_t i) { packer_.pack(i, raw, job.n_rows, job.out.data()); });
    std::memcpy(job.out.data() + job.n_rows * packer_.row_bytes(), raw + job.n_rows * packer_.raw_row_bytes(),
                job.n_rows * rest_bytes());
}

void PackedKvDevice::settle() {
    inner_.settle();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty(); });
}

Result<std::shared_ptr<Bytes>> PackedKvDevice::unpack(std::span<const std::uint8_t> rows, std::size_t n_rows) {
    if (rows.size() != n_rows * traits_.row_bytes) {
        return Error{ErrorCode::internal, "packed rows of another size"};
    }
    settle();  // they may still be on their way
    auto raw = std::make_shared<Bytes>(n_rows * inner_.traits().row_bytes);
    unpackers_.run(packer_.n_tensors(), [&](std::size_t i) { packer_.unpack(i, rows.data(), n_rows, raw->data()); });
    std::memcpy(raw->data() + n_rows * packer_.raw_row_bytes(), rows.data() + n_rows * packer_.row_bytes(),
                n_rows * rest_bytes());
    return raw;
}

Bytes PackedKvDevice::first_rows(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) {
    settle();
    Bytes first;
    packer_.append_first(rows, n_rows, n, first);
    if (rest_bytes() == 0) return first;
    Bytes raw(n_rows * inner_.traits().row_bytes);  // only what is not packed counts
    const std::span rest = rows.subspan(n_rows * packer_.row_bytes());
    std::memcpy(raw.data() + n_rows * packer_.raw_row_bytes(), rest.data(), rest.size());
    const Bytes kept = inner_.first_rows(raw, n_rows, n);
    first.insert(first.end(), kept.begin() + static_cast<std::ptrdiff_t>(n * packer_.raw_row_bytes()), kept.end());
    return first;
}

Result<void> PackedKvDevice::write(LaneId lane, Position begin, std::span<const Token> tokens,
                                   std::span<const std::uint8_t> rows, std::int32_t n_rows, std::span<Cell> cells) {
    const auto raw = unpack(rows, static_cast<std::size_t>(n_rows));
    if (!raw) return raw.error();
    return inner_.write(lane, begin, tokens, *raw.value(), n_rows, cells);
}

Result<void> PackedKvDevice::place(Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                                   std::shared_ptr<const void> owner, std::span<Cell> cells) {
    const auto raw = unpack(rows, cells.size());
    if (!raw) return raw.error();
    owner.reset();
    return inner_.place(begin, tokens, *raw.value(), raw.value(), cells);
}

}  // namespace luce::llama
