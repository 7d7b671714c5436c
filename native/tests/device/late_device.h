// LateDevice: a ggml device of the tests' own that a model can run on: its memory is out of the host's sight, the
// processor computes with it, and what is copied beside computations is copied as late as a device may: when somebody
// waits for it, or for what was given to the same stream behind it. So bytes that are overwritten, read or let go too
// early are wrong bytes, every time. It can run out of memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include <ggml-backend.h>

namespace luce::tests {

class LateDevice {
public:
    // Makes ggml know of it, for good; there is one a process.
    static LateDevice& install();

    ggml_backend_dev_t device();

    // From now on others than this thread cannot make a copy end by waiting for it, until let_go(): they wait. What
    // this thread's computations have to wait for they bring about.
    void hold_others_up();
    void let_go();

    // Others than this thread wait so long at least for a copy.
    void delay_others(std::chrono::microseconds delay);

    // Of its memory there is so much, taken or not.
    void set_total(std::size_t n_bytes);

    // A computation needs so much beside what its buffers have, or fails.
    void set_workspace(std::size_t n_bytes);
    std::size_t n_taken() const;
    std::uint64_t n_refused() const;

    // The n-th computation from now on is the first one that lacks `n_missing` bytes, of which it needs `n_bytes`; 0:
    // none does. Until set_total().
    void run_out_at(std::uint64_t n, std::size_t n_bytes, std::size_t n_missing);

    // The n-th computation from now on is refused memory, and no other.
    void refuse_once_at(std::uint64_t n);

    // Copies beside computations since the start, each of any number of lines.
    std::uint64_t n_copies_out() const;
};

}  // namespace luce::tests
