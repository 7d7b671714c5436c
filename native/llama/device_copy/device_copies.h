// DeviceCopies: bytes on their way from one GPU to the host while the engine computes on. start() copies them aside
// inside the device, which takes microseconds, and so they may change at once; start_lasting() sends bytes that stay as
// they are for a while straight into pinned memory, on a stream of their own. One thread sees both arrive, brings over
// what lies aside through a little pinned memory, and touches the host's pages, which is what takes long (1.5 GB/s
// where the memory is new). Knows tensors; must not know what they mean.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "llama/device_copy/device_bytes.h"

namespace luce::llama {

class DeviceCopies {
public:
    // Bytes of a tensor that lies on the device: n_bytes from `offset`, or, where `rows` is not empty, these rows of
    // row_bytes each, at `out` one after the other or, if it is not 0, out_stride apart. Without a tensor: bytes of the
    // host's, which `owner` keeps; copying them along leaves it to the helper to touch new memory.
    struct Piece {
        ggml_tensor* tensor = nullptr;
        const std::uint8_t* host = nullptr;
        std::uint8_t* out = nullptr;
        std::size_t offset = 0;
        std::size_t n_bytes = 0;
        std::size_t row_bytes = 0;
        std::size_t out_stride = 0;
        std::span<const std::uint32_t> rows = {};

        std::size_t size() const { return rows.empty() ? n_bytes : rows.size() * row_bytes; }
    };

    // Takes n_staged_bytes of the device's memory and a little pinned memory of the host's. Null: the device cannot
    // copy beside its computations.
    static std::unique_ptr<DeviceCopies> create(ggml_backend_dev_t device, std::size_t n_staged_bytes);

    // Waits for what is under way.
    ~DeviceCopies();
    DeviceCopies(const DeviceCopies&) = delete;
    DeviceCopies& operator=(const DeviceCopies&) = delete;

    ggml_backend_dev_t device() const { return device_; }

    // Whether it has memory for copies aside, and whether computations can wait for its copies.
    bool can_stage() const { return staging_ != nullptr; }
    bool can_hold_back() const { return straight_ != nullptr; }

    // When it returns the device may change the tensors; the bytes are at `out` after wait(). `owner` is kept until
    // then. Waits where too much is under way. False: all pieces together are larger than what can be staged, and
    // nothing has happened. REQUIRES: nobody computes into the tensors meanwhile.
    bool start(std::span<const Piece> pieces, std::shared_ptr<const void> owner);

    // The same behind what `stream`, one of the device's, has been given: the caller does not wait for that, and may
    // give it more at once. False, too: without events. REQUIRES: pieces in plain memory, and whoever else
    // changes them waits for the stream.
    bool start_behind(ggml_backend_t stream, std::span<const Piece> pieces, std::shared_ptr<const void> owner);

    // Of these pieces the ones that go straight: on its device, of few rows that lie apart, on their way to pinned
    // memory (memory/block_source.h).
    std::vector<bool> goes_straight(std::span<const Piece> pieces) const;

    // The same as start() of pieces that go straight. REQUIRES: who changes these bytes later has been held back, or
    // waits.
    void start_lasting(std::span<const Piece> pieces, std::shared_ptr<const void> owner);

    // What is computed on that stream of the device from now on begins when all that lasts has been read.
    void hold_back(ggml_backend_t stream);

    // Until everything that has been started by now has arrived. From any thread.
    void wait();

    std::size_t n_bytes_under_way() const;

    // Until nothing is on its way to these bytes. From the thread that starts copies.
    void wait_for(std::span<const std::uint8_t> bytes);

private:
    struct Part {                  // of a job: neighbours when staged
        const std::uint8_t* host;  // null: it is staged
        std::size_t staged;
        std::size_t n_bytes;
        std::uint8_t* out;
        // Lines of so many bytes begin so far apart at `out`; as far as they are long: they are neighbours there, too.
        std::size_t line_bytes = 1;
        std::size_t out_stride = 1;

        bool is_run() const { return line_bytes == out_stride; }
        std::uint8_t* out_of(std::size_t at) const { return out + at / line_bytes * out_stride; }
        bool goes_to(std::span<const std::uint8_t> bytes) const {
            return out < bytes.data() + bytes.size() && bytes.data() < out_of(n_bytes);
        }
    };
    struct Job {
        EventPtr read;                   // when the device has come so far; null: it lies aside, or will
        EventPtr staged;                 // when it lies aside; null: it does
        std::size_t begin = 0, end = 0;  // of what it occupies in the staging buffer
        std::vector<Part> parts;
        std::shared_ptr<const void> owner;

        std::size_t n_bytes() const;
    };

    DeviceCopies(ggml_backend_dev_t device, std::size_t n_staged_bytes);

    void open_staging(std::size_t n_bytes);
    std::size_t reserve(std::size_t n_bytes);
    std::optional<Job> stage(std::span<const Piece> pieces, std::shared_ptr<const void> owner);
    void copy_aside(ggml_backend_t stream, const Piece& piece, std::size_t staged);
    void gather(std::span<const Piece> pieces, std::span<const std::size_t> staged);
    void send(std::span<const Piece> pieces);
    EventPtr take_event();
    void give_back(EventPtr event);
    void add(Job job);
    void run();
    void complete(const Job& job);
    void bring_over(const Job& job);
    void bring_straight(const Part& part);
    static void add_part(std::vector<Part>& parts, const Piece& piece, std::size_t staged);

    ggml_backend_dev_t device_;
    BackendPtr aside_;      // the engine's thread: copies within the device
    BackendPtr straight_;   // the engine's thread: copies to the host; null: nothing can wait for them
    BackendPtr over_;       // the helper's: copies to the host of what lies aside
    BufferPtr staging_;     // on the device, used as a ring; null: there was no room
    BufferPtr pinned_;      // on the host: two halves, one being filled while the other is emptied
    BufferPtr indices_;     // on the device: rows to gather; made when first needed
    std::size_t next_ = 0;  // where in the ring the next job begins

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;  // the first one is under way
    std::vector<EventPtr> idle_events_;
    std::uint64_t n_started_ = 0;
    std::uint64_t n_arrived_ = 0;
    std::size_t n_bytes_ = 0;  // of the jobs
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace luce::llama
