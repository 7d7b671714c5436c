#include "memory/tiers/blob.h"

#include <sys/mman.h>

#include "memory/pages/block_source.h"

namespace luce::memory {
namespace {

constexpr std::size_t kLargePage_bytes = std::size_t{2} << 20;
constexpr std::size_t kLargeFrom_bytes = 2 * kLargePage_bytes;

constexpr auto kLargeAlignment = std::align_val_t{kLargePage_bytes};

BlockSource* block_source = nullptr;

bool is_block(std::size_t n_bytes) { return block_source != nullptr && n_bytes == block_source->block_bytes(); }

}  // namespace

void use_blocks_of(BlockSource* source) { block_source = source; }

bool prepare_block(std::size_t n_bytes) { return !is_block(n_bytes) || block_source->is_ready(); }

bool lies_in_block(const void* pointer) { return block_source != nullptr && block_source->owns(pointer); }

void* allocate_bytes(std::size_t n_bytes) {
    if (is_block(n_bytes)) {
        if (void* block = block_source->take()) return block;
    }
    if (n_bytes < kLargeFrom_bytes) return ::operator new(n_bytes);
    void* pointer = ::operator new(n_bytes, kLargeAlignment);
    ::madvise(pointer, n_bytes, MADV_HUGEPAGE);  // a wish: without it there are more page faults
    return pointer;
}

void free_bytes(void* pointer, std::size_t n_bytes) {
    if (is_block(n_bytes) && block_source->owns(pointer)) return block_source->give_back(pointer);
    if (n_bytes < kLargeFrom_bytes) return ::operator delete(pointer, n_bytes);
    ::operator delete(pointer, n_bytes, kLargeAlignment);
}

}  // namespace luce::memory
