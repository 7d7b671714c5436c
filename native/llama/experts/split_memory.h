// SplitMemory: addresses in a row whose bytes lie partly in a GPU's memory and partly in the host's; the GPU reads
// both, over its link where they are the host's. What lies behind an address may change: the address stays.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <ggml-backend.h>

#include "base/result.h"

namespace luce::llama {

class SplitMemory {
public:
    virtual ~SplitMemory() = default;

    // Of what is mapped, in bytes; a power of two.
    virtual std::size_t granularity() const = 0;

    // Addresses of `n_bytes`, with nothing behind them yet. Errors: out_of_memory.
    virtual Result<std::byte*> reserve(std::size_t n_bytes) = 0;

    using Block = std::size_t;

    // Memory of the GPU or of the host, all zero, with no address yet. `n_bytes`: a multiple of the granularity.
    // Errors: out_of_memory, naming whose.
    virtual Result<Block> allocate(std::size_t n_bytes, bool on_device) = 0;

    // Puts a whole block behind addresses that have nothing behind them, behind others as well as often as this is
    // called. `at`: a multiple of the granularity behind what reserve() gave. Errors: out_of_memory.
    virtual Result<void> map(std::byte* at, Block block) = 0;

    // The end of it, of the block whose first byte is there. Blocks keep their bytes.
    virtual void unmap(std::byte* at) = 0;

    // All that was given to the GPU is done.
    virtual void wait() = 0;

    // Blocking; nothing that reads or writes the bytes may be running. False: the driver refuses.
    virtual bool write(std::byte* to, const void* from, std::size_t n_bytes) = 0;
    virtual bool read(void* to, const std::byte* from, std::size_t n_bytes) = 0;
    virtual bool clear(std::byte* at, std::size_t n_bytes) = 0;
};

// Errors: unsupported, which says what is missing.
using SplitMemoryMaker = std::function<Result<std::unique_ptr<SplitMemory>>(ggml_backend_dev_t device)>;

// Of a CUDA device, by its driver (virtual memory management: CUDA 12.2 on Linux, Volta and later).
Result<std::unique_ptr<SplitMemory>> open_cuda_memory(ggml_backend_dev_t device);

}  // namespace luce::llama
