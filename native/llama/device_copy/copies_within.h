// CopiesWithin: bytes of a tensor to another place in it, in the order of the computations: what was given to the
// device before reads and writes before it, what is given to it afterwards sees the bytes there. Nobody waits for it,
// except where the tensor lies in the host's memory, or on a device that cannot. Must not know what the bytes mean.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include <ggml-backend.h>
#include <ggml.h>

namespace luce::llama {

class CopiesWithin {
public:
    // Among the computations of that scheduler. `settle` makes sure that none is under way: called where a copy cannot
    // be one of them.
    CopiesWithin(ggml_backend_sched_t scheduler, std::function<void()> settle)
        : scheduler_(scheduler), settle_(std::move(settle)) {}

    // REQUIRES: the places do not overlap.
    void copy(const ggml_tensor* tensor, std::size_t from, std::size_t to, std::size_t n_bytes);

private:
    bool copy_parts(const ggml_tensor* tensor, std::size_t from, std::size_t to, std::size_t n_bytes);
    ggml_backend_t stream_of(const ggml_tensor* tensor) const;
    void settle_once();

    ggml_backend_sched_t scheduler_;
    std::function<void()> settle_;
    bool is_settled_ = false;
};

}  // namespace luce::llama
