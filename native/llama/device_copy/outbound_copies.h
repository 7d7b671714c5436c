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

namespace luce::llama {

class OutboundCopies {
public:
    using Piece = DeviceCopies::Piece;

    // Beside computations on all devices on which one of the tensors lies; n_staged_bytes of memory on each.
    void open(std::span<ggml_tensor* const> tensors, std::size_t n_staged_bytes);

    // Waits for what is under way and gives the memory back.
    void close();

    // When it returns the tensors may change; the bytes are at the pieces' `out`, which belongs to `owner`, after
    // wait(). REQUIRES: nobody computes into the tensors meanwhile.
    void start(std::span<const Piece> pieces, const std::shared_ptr<const void>& owner);

    // The same behind the computations that the scheduler's backends have been given: the caller does not wait for
    // them, and may compute on. False, and nothing has happened: not all tensors' devices can. REQUIRES: pieces in
    // plain memory of devices, or of the host.
    bool start_behind(ggml_backend_sched_t scheduler, std::span<const Piece> pieces,
                      const std::shared_ptr<const void>& owner);

    // The same of bytes that stay as they are until hold_back() is called: they go straight into pinned memory, where
    // `out` lies in it.
    void start_lasting(std::span<const Piece> pieces, const std::shared_ptr<const void>& owner);

    // What the scheduler's backends are given from now on begins when all that was started has been read; the caller
    // does not wait.
    void hold_back(ggml_backend_sched_t scheduler);

    // Until everything that was started has arrived. From any thread, also beside close().
    void wait();

    // That have been started and have not arrived.
    std::size_t n_bytes_under_way() const;

    // Until nothing is on its way to these bytes. From the thread that starts copies.
    void wait_for(std::span<const std::uint8_t> bytes);

private:
    using Devices = std::vector<std::shared_ptr<DeviceCopies>>;

    Devices devices() const;  // for those who wait on other threads

    mutable std::mutex mutex_;
    Devices devices_;
};

}  // namespace luce::llama
