// Lines of bytes, each at one place of a device's memory and one of the host's, and which of them one copy takes: those
// that lie at equal distances on both sides. A page's rows do, tensor by tensor: one copy of so many lines is as fast
// as the bus, one copy each half as fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ggml-backend.h"

namespace luce::llama {

struct DeviceLine {
    ggml_backend_buffer_t buffer = nullptr;
    std::uint8_t* there = nullptr;
    const std::uint8_t* here = nullptr;
    std::size_t n_bytes = 0;
};

// Neighbours in the order in which they were given, equally long and in one buffer. A single line's strides are its
// length.
struct LineGroup {
    std::size_t begin = 0;
    std::size_t n = 0;
    std::size_t stride_there = 0;
    std::size_t stride_here = 0;
};

// The buffer's addresses lie over several allocations, of which CUDA copies lines one by one only.
void note_pieced(ggml_backend_buffer_t buffer);
void forget_pieced(ggml_backend_buffer_t buffer);

std::vector<LineGroup> group_lines(std::span<const DeviceLine> lines);

}  // namespace luce::llama
