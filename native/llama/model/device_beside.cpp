#include "llama/model/device_beside.h"

#include "llama-model.h"

namespace luce::llama {

DeviceBeside::DeviceBeside(const llama_model& target) {
    ggml_backend_dev_t device = target.dev_output();
    switch (ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU: break;
        // Several that compute each tensor together: any of them.
        case GGML_BACKEND_DEVICE_TYPE_META: devices_[0] = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU); break;
        default: devices_[0] = device;
    }
}

void DeviceBeside::apply(llama_model_params& params) {
    if (devices_[0] != nullptr) params.devices = devices_.data();
}

}  // namespace luce::llama
