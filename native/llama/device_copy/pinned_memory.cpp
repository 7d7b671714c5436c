#include "llama/device_copy/pinned_memory.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <iterator>
#include <system_error>

#include "base/log.h"

namespace luce::llama {
namespace {

// With 64 MiB at once there were gaps of 25 to 85 ms between tokens.
constexpr std::size_t kSlabBytes = std::size_t{4} << 20;
constexpr std::size_t kAheadBytes = std::size_t{64} << 20;
constexpr int kRestPerWork = 99;  // getting them takes a hundredth of the time

}  // namespace

std::unique_ptr<PinnedMemory> PinnedMemory::create(ggml_backend_dev_t device, std::size_t block_bytes,
                                                   std::size_t limit_bytes) {
    const ggml_backend_buffer_type_t type = device == nullptr ? nullptr : ggml_backend_dev_host_buffer_type(device);
    if (type == nullptr || block_bytes == 0 || limit_bytes < std::max(block_bytes, kSlabBytes)) return nullptr;
    try {
        return std::unique_ptr<PinnedMemory>(new PinnedMemory(type, block_bytes, limit_bytes));
    } catch (const std::system_error&) {  // no thread
        return nullptr;
    }
}

PinnedMemory::PinnedMemory(ggml_backend_buffer_type_t type, std::size_t block_bytes, std::size_t limit_bytes)
    : type_(type),
      block_bytes_(block_bytes),
      limit_bytes_(limit_bytes),
      n_slab_(std::max<std::size_t>(1, kSlabBytes / block_bytes)),
      n_ahead_(std::max(n_slab_, std::min(kAheadBytes, limit_bytes) / block_bytes)),
      thread_([this] { run(); }) {
    memory::use_blocks_of(this);
}

PinnedMemory::~PinnedMemory() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
    memory::use_blocks_of(nullptr);
    assert(free_.size() == slabs_.size() * n_slab_);
}

void* PinnedMemory::take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return nullptr;
    void* block = free_.back();
    free_.pop_back();
    if (is_short()) changed_.notify_all();
    return block;
}

void PinnedMemory::give_back(void* block) {
    const std::lock_guard lock(mutex_);
    free_.push_back(block);
}

bool PinnedMemory::owns(const void* pointer) const {
    const std::lock_guard lock(mutex_);
    const auto* byte = static_cast<const std::uint8_t*>(pointer);
    const auto behind = slabs_.upper_bound(byte);
    return behind != slabs_.begin() && byte < std::prev(behind)->first + n_slab_ * block_bytes_;
}

bool PinnedMemory::is_ready() {
    const std::lock_guard lock(mutex_);
    if (is_full_ || !free_.empty()) return true;
    is_wanted_ = true;
    changed_.notify_all();
    return false;
}

std::size_t PinnedMemory::n_bytes() const {
    const std::lock_guard lock(mutex_);
    return slabs_.size() * n_slab_ * block_bytes_;
}

bool PinnedMemory::wait_for_block() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_full_ || !free_.empty(); });
    return !free_.empty();
}

void PinnedMemory::run() {
    using Clock = std::chrono::steady_clock;
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_closing_ || is_short(); });
        if (is_closing_) return;
        const Clock::time_point begun = Clock::now();
        add_slab(lock);
        const bool is_start = slabs_.size() * n_slab_ < n_ahead_;
        if (is_start || is_full_) continue;
        changed_.wait_for(lock, kRestPerWork * (Clock::now() - begun), [this] { return is_closing_ || is_wanted_; });
    }
}

void PinnedMemory::add_slab(std::unique_lock<std::mutex>& lock) {
    const std::size_t n_bytes = n_slab_ * block_bytes_;
    const bool has_room = (slabs_.size() + 1) * n_bytes <= limit_bytes_;
    lock.unlock();
    BufferPtr slab(has_room ? ggml_backend_buft_alloc_buffer(type_, n_bytes) : nullptr);
    // Without pinned memory ggml gives the usual one instead, which is of no use here.
    if (slab != nullptr && ggml_backend_buffer_get_type(slab.get()) != type_) slab.reset();
    if (slab == nullptr && has_room) {
        log_warn("the system gives no more pinned memory: further pages are copied to the device more slowly");
    }
    lock.lock();
    is_wanted_ = false;
    if (slab == nullptr) {
        is_full_ = true;
    } else {
        std::uint8_t* begin = data_of(slab.get());
        for (std::size_t i = n_slab_; i-- > 0;) free_.push_back(begin + i * block_bytes_);
        slabs_.emplace(begin, std::move(slab));
    }
    changed_.notify_all();
}

}  // namespace luce::llama
