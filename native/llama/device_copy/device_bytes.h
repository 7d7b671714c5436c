// Bytes of a device's memory as ggml wants to be told of them, as a tensor of one row, and who owns what of ggml's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ggml-backend.h>
#include <ggml.h>

namespace luce::llama {

struct BackendDeleter {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct BufferDeleter {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
struct EventDeleter {
    void operator()(ggml_backend_event_t event) const { ggml_backend_event_free(event); }
};
using BackendPtr = std::unique_ptr<ggml_backend, BackendDeleter>;
using BufferPtr = std::unique_ptr<ggml_backend_buffer, BufferDeleter>;
using EventPtr = std::unique_ptr<ggml_backend_event, EventDeleter>;

inline std::uint8_t* data_of(const ggml_tensor* tensor) { return static_cast<std::uint8_t*>(tensor->data); }
inline std::uint8_t* data_of(ggml_backend_buffer_t buffer) {
    return static_cast<std::uint8_t*>(ggml_backend_buffer_get_base(buffer));
}

inline ggml_backend_buffer_t buffer_of(const ggml_tensor* tensor) {
    return tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
}

// The device that the tensor lies on; null for the host's memory.
inline ggml_backend_dev_t device_holding(const ggml_tensor* tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    if (ggml_backend_buffer_is_host(buffer)) return nullptr;
    return ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
}

// Several devices, each with a part of every tensor: what is copied are whole rows of tensors that it knows, at once.
inline bool is_of_parts(ggml_backend_dev_t device) {
    return ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_META;
}

// Whether it has streams that copy beside its computations.
inline bool can_stream(ggml_backend_dev_t device) {
    if (is_of_parts(device)) return false;
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    return props.caps.async;
}

// Whether a stream of the device's copies it: another kind of memory on the device takes none of a stream's copies.
inline bool is_plain_memory(const ggml_tensor* tensor, ggml_backend_dev_t device) {
    return ggml_backend_buffer_get_type(buffer_of(tensor)) == ggml_backend_dev_buffer_type(device);
}

// A plain run of bytes where `data` points to.
inline ggml_tensor bytes_at(ggml_backend_buffer_t buffer, void* data, std::size_t n_bytes) {
    ggml_tensor tensor{};
    tensor.type = GGML_TYPE_I8;
    tensor.buffer = buffer;
    tensor.data = data;
    tensor.ne[0] = static_cast<std::int64_t>(n_bytes);
    tensor.ne[1] = tensor.ne[2] = tensor.ne[3] = 1;
    tensor.nb[0] = 1;
    tensor.nb[1] = tensor.nb[2] = tensor.nb[3] = n_bytes;
    return tensor;
}

// Neighbouring rows as one: the index of the first and how many they are.
template <typename Each>
void for_each_run(std::span<const std::uint32_t> rows, const Each& each) {
    for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
        end = begin + 1;
        while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
        each(begin, end - begin);
    }
}

}  // namespace luce::llama
