#include "llama/device_copy/copies_within.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "llama/device_copy/device_bytes.h"

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

// A stream that cannot copy by itself is waited for by ggml, before and after.
void CopiesWithin::copy(const ggml_tensor* tensor, std::size_t from, std::size_t to, std::size_t n_bytes) {
    ggml_backend_buffer_t buffer = buffer_of(tensor);
    ggml_backend_t stream = stream_of(tensor);
    if (stream == nullptr) settle_once();
    if (ggml_backend_buffer_is_host(buffer)) {
        std::memcpy(data_of(tensor) + to, data_of(tensor) + from, n_bytes);
        return;
    }
    if (is_of_parts(device_holding(tensor))) {
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
