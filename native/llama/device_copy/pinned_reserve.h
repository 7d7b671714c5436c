// PinnedReserve: pinned memory that a model had and leaves behind when it leaves the device, for when it comes back:
// getting 0.2 GB takes 0.1 s, and giving them back 0.02. One a process, for the memory that its GPUs copy from;
// callable from any thread.
#pragma once

#include <cstddef>

#include <ggml-backend.h>

namespace luce::llama {

class PinnedReserve {
public:
    // From now on that device's pinned memory comes from here first. The first call counts.
    static void install(ggml_backend_dev_t device);

    // While it lives large pieces that are given back stay, up to a limit.
    class Keeping {
    public:
        Keeping();
        ~Keeping();
        Keeping(const Keeping&) = delete;
        Keeping& operator=(const Keeping&) = delete;
    };

    // What has stayed goes.
    static void clear();

    static std::size_t n_bytes();
};

}  // namespace luce::llama
