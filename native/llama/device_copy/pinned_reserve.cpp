#include "llama/device_copy/pinned_reserve.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "ggml-backend-impl.h"

namespace luce::llama {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{8} << 20;
constexpr std::size_t kMostBytes = std::size_t{512} << 20;

struct Kept {
    void* data;
    std::size_t n_bytes;
};

struct State {
    std::mutex mutex;
    ggml_backend_buffer_type_t type = nullptr;
    decltype(ggml_backend_buffer_type_i::alloc_buffer) allocate = nullptr;  // the type's own
    decltype(ggml_backend_buffer_i::free_buffer) free = nullptr;            // its buffers' own
    bool keeps = false;
    std::vector<Kept> kept;

    std::size_t n_bytes() const {
        std::size_t n = 0;
        for (const Kept& one : kept) n += one.n_bytes;
        return n;
    }
};

State& state() {
    static State one;
    return one;
}

ggml_backend_buffer_t buffer_of(const Kept& memory) {
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(memory.data, memory.n_bytes);
    buffer->buft = state().type;
    return buffer;
}

void free_or_keep(ggml_backend_buffer_t buffer) {
    State& s = state();
    {
        const std::lock_guard lock(s.mutex);
        if (s.keeps && buffer->size >= kLeastBytes && s.n_bytes() + buffer->size <= kMostBytes) {
            s.kept.push_back({buffer->context, buffer->size});
            return;
        }
    }
    s.free(buffer);
}

// A model that comes back asks for the sizes that it had.
ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, std::size_t n_bytes) {
    State& s = state();
    {
        const std::lock_guard lock(s.mutex);
        const auto found = std::ranges::find(s.kept, n_bytes, &Kept::n_bytes);
        if (found != s.kept.end()) {
            ggml_backend_buffer_t buffer = buffer_of(*found);
            buffer->iface.free_buffer = free_or_keep;
            s.kept.erase(found);
            return buffer;
        }
    }
    ggml_backend_buffer_t buffer = s.allocate(type, n_bytes);
    // Without pinned memory ggml gives the usual one instead.
    if (buffer == nullptr || buffer->buft != type) return buffer;
    const std::lock_guard lock(s.mutex);
    s.free = buffer->iface.free_buffer;
    buffer->iface.free_buffer = free_or_keep;
    return buffer;
}

}  // namespace

void PinnedReserve::install(ggml_backend_dev_t device) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.type != nullptr) return;
    s.type = ggml_backend_dev_host_buffer_type(device);
    if (s.type == nullptr) return;
    s.allocate = std::exchange(s.type->iface.alloc_buffer, allocate);
}

PinnedReserve::Keeping::Keeping() {
    const std::lock_guard lock(state().mutex);
    state().keeps = true;
}

PinnedReserve::Keeping::~Keeping() {
    const std::lock_guard lock(state().mutex);
    state().keeps = false;
}

void PinnedReserve::clear() {
    State& s = state();
    std::vector<Kept> all;
    {
        const std::lock_guard lock(s.mutex);
        all.swap(s.kept);
    }
    for (const Kept& one : all) {
        ggml_backend_buffer_t buffer = buffer_of(one);
        buffer->iface.free_buffer = s.free;
        ggml_backend_buffer_free(buffer);
    }
}

std::size_t PinnedReserve::n_bytes() {
    const std::lock_guard lock(state().mutex);
    return state().n_bytes();
}

}  // namespace luce::llama
