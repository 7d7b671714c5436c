// DirectCopies: bytes of a GPU's tensors straight into pinned memory of the host's, on a stream of their own: as fast
// as the bus, and the engine waits only until they are asked for. What device_copies.h buys with a copy aside is left
// to the caller: the bytes must not change before they are read. A thread of its own notices when they have come.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "ggml-backend.h"
#include "llama/device_copy/device_copies.h"

namespace luce::llama {

class DirectCopies {
public:
    using Piece = DeviceCopies::Piece;

    // Null: the device cannot copy beside its computations, or cannot let these wait for a copy.
    static std::unique_ptr<DirectCopies> create(ggml_backend_dev_t device);

    // Waits for what is under way.
    ~DirectCopies();
    DirectCopies(const DirectCopies&) = delete;
    DirectCopies& operator=(const DirectCopies&) = delete;

    ggml_backend_dev_t device() const { return device_; }

    // Of these pieces the ones that it copies: on its device, of few rows that lie apart, on their way to pinned memory
    // (memory/block_source.h).
    std::vector<bool> taken(std::span<const Piece> pieces) const;

    // Pieces that it takes. The bytes are at `out` after wait(); `owner` is kept until then. REQUIRES: nobody computes
    // into the tensors now; who changes these bytes later has been held back, or waits.
    void start(std::span<const Piece> pieces, std::shared_ptr<const void> owner);

    // What is computed on that stream of the device from now on begins when all that was started has been read.
    void hold_back(ggml_backend_t stream);

    // Until everything that has been started by now has arrived. From any thread.
    void wait();

    // Until nothing is on its way to these bytes.
    void wait_for(std::span<const std::uint8_t> bytes);

private:
    struct BackendDeleter {
        void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
    };
    struct EventDeleter {
        void operator()(ggml_backend_event_t event) const { ggml_backend_event_free(event); }
    };
    using BackendPtr = std::unique_ptr<ggml_backend, BackendDeleter>;
    using EventPtr = std::unique_ptr<ggml_backend_event, EventDeleter>;

    struct Job {
        EventPtr read;  // when the device has come so far
        std::vector<std::span<const std::uint8_t>> out;
        std::shared_ptr<const void> owner;
    };

    DirectCopies(ggml_backend_dev_t device, BackendPtr stream, EventPtr first);

    EventPtr take_event();
    void send(std::span<const Piece> pieces);
    void run();

    ggml_backend_dev_t device_;
    BackendPtr stream_;  // the engine's thread alone speaks to it

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;  // the first one is under way
    std::vector<EventPtr> idle_events_;
    std::uint64_t n_started_ = 0;
    std::uint64_t n_arrived_ = 0;
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace luce::llama
