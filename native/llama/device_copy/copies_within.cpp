#include "llama/device_copy/copies_within.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "llama/device_copy/device_bytes.h"
#include "llama/device_copy/tensor_parts.h"

namespace luce::llama {

ggml_backend_t CopiesWithin::stream_of(const ggml_tensor* tensor) const {
    const ggml_backend_dev_t device = device_holding(tensor);
    if (device == nullptr || is_of_parts(device) || !is_plain_memory(tensor, device)) return nullptr;
    return llama::stream_of(scheduler_, device);
}

void CopiesWithin::settle_once() {
    if (!is_settled_) settle_();
    is_settled_ = true;
}

// Each device's own part of the same rows. False: they are no whole rows.
bool CopiesWithin::copy_parts(const ggml_tensor* tensor, std::size_t from, std::size_t to, std::size_t n_bytes) {
    const std::vector<ggml_tensor*> parts = tensors_with_rows_of(tensor);
    const std::size_t row_bytes = tensor->nb[1];
    if (parts.empty() || from % row_bytes != 0 || to % row_bytes != 0 || n_bytes % row_bytes != 0) return false;
    for (const ggml_tensor* part : parts) {
        const std::size_t part_bytes = part->nb[1];
        if (part_bytes == 0) continue;
        copy(part, from / row_bytes * part_bytes, to / row_bytes * part_bytes, n_bytes / row_bytes * part_bytes);
    }
    return true;
}

// A stream that cannot copy by itself is waited for by ggml, before and after.
void CopiesWithin::copy(const ggml_tensor* tensor, std::size_t from, std::size_t to, std::size_t n_bytes) {
    const ggml_backend_dev_t device = device_holding(tensor);
    const bool has_parts = device != nullptr && is_of_parts(device);
    if (has_parts && copy_parts(tensor, from, to, n_bytes)) return;
    ggml_backend_buffer_t buffer = buffer_of(tensor);
    ggml_backend_t stream = stream_of(tensor);
    if (stream == nullptr) settle_once();
    if (ggml_backend_buffer_is_host(buffer)) {
        std::memcpy(data_of(tensor) + to, data_of(tensor) + from, n_bytes);
        return;
    }
    if (has_parts) {
        std::vector<std::uint8_t> bytes(n_bytes);
        ggml_backend_tensor_get(tensor, bytes.data(), from, n_bytes);
        ggml_backend_tensor_set(const_cast<ggml_tensor*>(tensor), bytes.data(), to, n_bytes);
        return;
    }
    ggml_tensor source = bytes_at(buffer, data_of(tensor) + from, n_bytes);
    ggml_tensor target = bytes_at(buffer, data_of(tensor) + to, n_bytes);
    if (stream != nullptr) {
        ggml_backend_tensor_copy_async(stream, stream, &source, &target);
    } else {
        ggml_backend_tensor_copy(&source, &target);
    }
}

}  // namespace luce::llama
