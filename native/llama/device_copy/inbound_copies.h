// InboundCopies: bytes of the host's into tensors, beside the computation where they lie on a device, at once where
// they do not. One thread hands them to each device on a stream of its own; from pinned memory (pinned_memory.h) the
// device fetches them itself. Must not know what the bytes mean.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "llama/device_copy/device_bytes.h"

namespace luce::llama {

class InboundCopies {
public:
    struct Piece {
        ggml_tensor* tensor = nullptr;
        std::size_t offset = 0;
        const std::uint8_t* from = nullptr;
        std::size_t n_bytes = 0;
    };

    InboundCopies() = default;  // all at once
    ~InboundCopies() { close(); }
    InboundCopies(const InboundCopies&) = delete;
    InboundCopies& operator=(const InboundCopies&) = delete;

    // Beside computations on all devices on which one of the tensors lies, if they can do that.
    void open(std::span<ggml_tensor* const> tensors);

    // Waits for what is under way.
    void close();

    // The bytes are there after wait(). `owner`, whose they are, is kept until then. REQUIRES: nobody looks at that
    // part of the tensors meanwhile.
    void start(std::span<const Piece> pieces, std::shared_ptr<const void> owner);

    // Until everything that was started has arrived. Costs nothing where nothing is under way.
    void wait();

private:
    struct Job {
        std::vector<Piece> pieces;
        std::shared_ptr<const void> owner;
    };

    ggml_backend_t stream_of(const ggml_tensor* tensor) const;
    void run();
    void send_first(std::size_t n, std::unique_lock<std::mutex>& lock);
    void send(const Job& job) const;

    std::map<ggml_backend_dev_t, BackendPtr> streams_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;  // those that are under way come first
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace luce::llama
