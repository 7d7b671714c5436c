// Bytes of a device's memory as ggml wants to be told of them: as a tensor of one row.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ggml-backend.h>
#include <ggml.h>

namespace luce::llama {

inline std::uint8_t* data_of(const ggml_tensor* tensor) { return static_cast<std::uint8_t*>(tensor->data); }
inline std::uint8_t* data_of(ggml_backend_buffer_t buffer) {
    return static_cast<std::uint8_t*>(ggml_backend_buffer_get_base(buffer));
}

inline ggml_backend_buffer_t buffer_of(const ggml_tensor* tensor) {
    return tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
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

}  // namespace luce::llama
