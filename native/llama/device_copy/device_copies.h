// DeviceCopies: bytes on their way from a GPU to the host while the engine computes on. start() copies them aside
// inside the device, which takes microseconds; a thread of its own brings them over through pinned memory and touches
// the host's pages, which is what takes long (1.5 GB/s where the memory is new). Knows tensors; must not know what they
// mean.
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

namespace luce::llama {

class DeviceCopies {
public:
    // Bytes of a tensor that lies on the device: n_bytes from `offset`, or, where `rows` is not empty, these rows of
    // row_bytes each, one after the other. Without a tensor: bytes of the host's, which `owner` keeps; copying them
    // along leaves it to the helper to touch new memory.
    struct Piece {
        ggml_tensor* tensor = nullptr;
        const std::uint8_t* host = nullptr;
        std::uint8_t* out = nullptr;
        std::size_t offset = 0;
        std::size_t n_bytes = 0;
        std::size_t row_bytes = 0;
        std::span<const std::uint32_t> rows = {};

        std::size_t size() const { return rows.empty() ? n_bytes : rows.size() * row_bytes; }
    };

    // The device that the tensor lies on; null for the host's memory.
    static ggml_backend_dev_t device_of(const ggml_tensor* tensor);

    // Takes n_staged_bytes of the device's memory and a little pinned memory of the host's. Null: the device has no
    // room, or cannot copy beside its computations.
    static std::unique_ptr<DeviceCopies> create(ggml_backend_dev_t device, std::size_t n_staged_bytes);

    // Waits for what is under way.
    ~DeviceCopies();
    DeviceCopies(const DeviceCopies&) = delete;
    DeviceCopies& operator=(const DeviceCopies&) = delete;

    ggml_backend_dev_t device() const { return device_; }

    // When it returns the device may change the tensors; the bytes are at `out` after wait(). `owner` is kept until
    // then. Waits where too much is under way. False: all pieces together are larger than what can be staged, and
    // nothing has happened. REQUIRES: nobody computes into the tensors overlapped.
    bool start(std::span<const Piece> pieces, std::shared_ptr<const void> owner);

    // Until everything that has been started by now has arrived. From any thread.
    void wait();

    // Until nothing is on its way to these bytes.
    void wait_for(std::span<const std::uint8_t> bytes);

private:
    struct BackendDeleter {
        void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
    };
    struct BufferDeleter {
        void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
    };
    using BackendPtr = std::unique_ptr<ggml_backend, BackendDeleter>;
    using BufferPtr = std::unique_ptr<ggml_backend_buffer, BufferDeleter>;

    struct Part {                  // of a job: neighbours both when staged and at their destination
        const std::uint8_t* host;  // null: it is staged
        std::size_t staged;
        std::size_t n_bytes;
        std::uint8_t* out;
    };
    struct Job {
        std::size_t begin = 0, end = 0;  // of what it occupies in the staging buffer
        std::vector<Part> parts;
        std::shared_ptr<const void> owner;
    };

    DeviceCopies(ggml_backend_dev_t device, BackendPtr aside, BackendPtr over, BufferPtr staging, BufferPtr pinned);

    std::size_t reserve(std::size_t n_bytes);
    void copy_aside(const Piece& piece, std::size_t staged);
    void gather(std::span<const Piece> pieces, std::span<const std::size_t> staged);
    void run();
    void bring_over(const Job& job);
    static void add(std::vector<Part>& parts, const Piece& piece, std::size_t staged);

    ggml_backend_dev_t device_;
    BackendPtr aside_;      // the engine's thread: copies within the device
    BackendPtr over_;       // the helper's: copies to the host, on a stream of its own
    BufferPtr staging_;     // on the device, used as a ring
    BufferPtr pinned_;      // on the host: two halves, one being filled while the other is emptied
    BufferPtr indices_;     // on the device: rows to gather; made when first needed
    std::size_t next_ = 0;  // where in the ring the next job begins

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;  // the first one is under way
    std::uint64_t n_started_ = 0;
    std::uint64_t n_arrived_ = 0;
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace luce::llama
