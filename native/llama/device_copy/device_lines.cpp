#include "llama/device_copy/device_lines.h"

#include <algorithm>
#include <mutex>

namespace luce::llama {
namespace {

constexpr std::ptrdiff_t kMaxDistance = std::ptrdiff_t{1} << 30;  // CUDA takes no lines that lie 2 GiB apart

struct PiecedBuffers {
    std::mutex mutex;
    std::vector<ggml_backend_buffer_t> all;

    bool has(ggml_backend_buffer_t buffer) {
        const std::lock_guard lock(mutex);
        return std::ranges::find(all, buffer) != all.end();
    }
};

PiecedBuffers& pieced() {
    static PiecedBuffers buffers;
    return buffers;
}

// Whether the second may be the next line after the first one, and how far it lies from it.
bool can_follow(const DeviceLine& first, const DeviceLine& second, LineGroup& group) {
    if (second.buffer != first.buffer || second.n_bytes != first.n_bytes) return false;
    const auto n_bytes = static_cast<std::ptrdiff_t>(first.n_bytes);
    const std::ptrdiff_t there = second.there - first.there;
    const std::ptrdiff_t here = second.here - first.here;
    if (there < n_bytes || here < n_bytes || there > kMaxDistance || here > kMaxDistance) return false;
    if (pieced().has(first.buffer)) return false;
    group.stride_there = static_cast<std::size_t>(there);
    group.stride_here = static_cast<std::size_t>(here);
    return true;
}

}  // namespace

void note_pieced(ggml_backend_buffer_t buffer) {
    const std::lock_guard lock(pieced().mutex);
    pieced().all.push_back(buffer);
}

void forget_pieced(ggml_backend_buffer_t buffer) {
    const std::lock_guard lock(pieced().mutex);
    std::erase(pieced().all, buffer);
}

std::vector<LineGroup> group_lines(std::span<const DeviceLine> lines) {
    std::vector<LineGroup> groups;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        LineGroup step;
        if (i > 0 && can_follow(lines[i - 1], lines[i], step)) {
            LineGroup& group = groups.back();
            if (group.n == 1) {
                group.stride_there = step.stride_there;
                group.stride_here = step.stride_here;
            }
            if (group.stride_there == step.stride_there && group.stride_here == step.stride_here) {
                ++group.n;
                continue;
            }
        }
        groups.push_back({i, 1, lines[i].n_bytes, lines[i].n_bytes});
    }
    return groups;
}

}  // namespace luce::llama
