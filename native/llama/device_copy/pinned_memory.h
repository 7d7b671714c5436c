// PinnedMemory: blocks of the host's memory that a device copies to and from by itself, at the speed of the bus and
// without a thread's help. The system cannot page it out, and getting it takes long, so a thread of its own gets it in
// slabs, ahead of need and up to a limit; whoever comes too early takes the usual memory. Nothing is given back before
// the end. Knows nothing of what the blocks hold.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "llama/device_copy/device_bytes.h"
#include "memory/pages/block_source.h"

namespace luce::llama {

class PinnedMemory final : public memory::BlockSource {
public:
    // From then on Bytes of that size lie in it (memory/block_source.h). Null: the device has no such memory, or the
    // limit has no room for a slab. `device`: null is the processor, which needs none.
    static std::unique_ptr<PinnedMemory> create(ggml_backend_dev_t device, std::size_t block_bytes,
                                                std::size_t limit_bytes);

    // REQUIRES: no block is in use.
    ~PinnedMemory() override;
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;

    std::size_t block_bytes() const override { return block_bytes_; }
    void* take() override;
    bool owns(const void* pointer) const override;
    void give_back(void* block) override;

    // Until there is a free block, or there will be none any more. For benchmarks and tests.
    bool wait_for_block();

private:
    PinnedMemory(ggml_backend_buffer_type_t type, std::size_t block_bytes, std::size_t limit_bytes);

    void run();
    bool is_short() const { return !is_full_ && free_.size() < n_slab_; }

    ggml_backend_buffer_type_t type_;
    std::size_t block_bytes_;
    std::size_t limit_bytes_;
    std::size_t n_slab_;  // blocks of a slab

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<BufferPtr> slabs_;
    std::vector<void*> free_;
    bool is_full_ = false;
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace luce::llama
