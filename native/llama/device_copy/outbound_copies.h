// OutboundCopies: bytes of any tensors to the host, beside the computation where a device can do that, at once where it
// cannot. Knows which device each tensor lies on, and whether its bytes go straight to the host or aside first; must
// not know what the bytes mean.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "llama/device_copy/device_copies.h"
#include "llama/device_copy/direct_copies.h"

namespace luce::llama {

class OutboundCopies {
public:
    using Piece = DeviceCopies::Piece;

    // Beside computations on all devices on which one of the tensors lies; n_staged_bytes of memory on each.
    void open(std::span<ggml_tensor* const> tensors, std::size_t n_staged_bytes);

    // Waits for what is under way and gives the memory back.
    void close();

    // When it returns the tensors may change; the bytes are at the pieces' `out`, which belongs to `owner`, after
    // wait(). REQUIRES: nobody computes into the tensors overlapped.
    void start(std::span<const Piece> pieces, const std::shared_ptr<const void>& owner);

    // The same of bytes that stay as they are until hold_back() is called: they go straight into pinned memory, where
    // `out` lies in it.
    void start_of_lasting(std::span<const Piece> pieces, const std::shared_ptr<const void>& owner);

    // What the scheduler's backends are given from now on begins when all that was started has been read; the caller
    // does not wait.
    void hold_back(ggml_backend_sched_t scheduler);

    // Until everything that was started has arrived. From any thread, also beside close().
    void wait();

    // Until nothing is on its way to these bytes.
    void wait_for(std::span<const std::uint8_t> bytes);

private:
    struct Device {
        ggml_backend_dev_t device = nullptr;
        std::shared_ptr<DeviceCopies> aside;     // null: there was no room for it
        std::shared_ptr<DirectCopies> straight;  // null: the device cannot
    };

    std::vector<Device> devices() const;  // for those who wait on other threads

    mutable std::mutex mutex_;
    std::vector<Device> devices_;
};

}  // namespace luce::llama
