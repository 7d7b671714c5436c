// PinnedMemory: blocks of the host's memory that a device copies to and from by itself, at the speed of the bus and
// without a thread's help. The system cannot page it out. Getting it takes long, and nothing can be launched on a
// device meanwhile, so a thread of its own gets it in small slabs, up to a limit: some at the start; later as fast as
// is_ready() asks for them, or else so seldom that computations hardly notice. Whoever comes too early takes the usual
// memory. Nothing is given back before the end. Knows nothing of what the blocks hold.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
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
    bool is_ready() override;
    void give_back(void* block) override;

    // Until there is a free block, or there will be none any more. For tests.
    bool wait_for_block();

    std::size_t n_bytes() const;  // in all slabs

private:
    PinnedMemory(ggml_backend_buffer_type_t type, std::size_t block_bytes, std::size_t limit_bytes);

    void run();
    bool is_short() const { return !is_full_ && (is_wanted_ || free_.size() + n_slab_ <= n_ahead_); }
    void add_slab(std::unique_lock<std::mutex>& lock);

    ggml_backend_buffer_type_t type_;
    std::size_t block_bytes_;
    std::size_t limit_bytes_;
    std::size_t n_slab_;   // blocks of a slab
    std::size_t n_ahead_;  // of free blocks

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::map<const std::uint8_t*, BufferPtr> slabs_;  // by where they begin
    std::vector<void*> free_;
    bool is_full_ = false;
    bool is_wanted_ = false;  // a slab at once
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace luce::llama
