// DeviceBeside: the one GPU that a small model lies on which works beside another one: a drafter, a scorer, a
// projector. llama.cpp would spread it over all of them, and each of its many short calls would wait for each.
#pragma once

#include <array>

#include <ggml-backend.h>
#include <llama.h>

namespace luce::llama {

class DeviceBeside {
public:
    // The GPU that has `target`'s output, since drafters compute with it; none, where the CPU has it.
    explicit DeviceBeside(const llama_model& target);

    ggml_backend_dev_t device() const { return devices_[0]; }

    // REQUIRES: it outlives the use of `params`.
    void apply(llama_model_params& params);

private:
    std::array<ggml_backend_dev_t, 2> devices_{};  // ends with a null
};

}  // namespace luce::llama
