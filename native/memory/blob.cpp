#include "memory/blob.h"

#include <sys/mman.h>

namespace luce::memory {
namespace {

constexpr std::size_t kLargePage_bytes = std::size_t{2} << 20;
constexpr std::size_t kLargeFrom_bytes = 2 * kLargePage_bytes;

constexpr auto kLargeAlignment = std::align_val_t{kLargePage_bytes};

}  // namespace

void* allocate_bytes(std::size_t n_bytes) {
    if (n_bytes < kLargeFrom_bytes) return ::operator new(n_bytes);
    void* pointer = ::operator new(n_bytes, kLargeAlignment);
    ::madvise(pointer, n_bytes, MADV_HUGEPAGE);  // a wish: without it there are more page faults
    return pointer;
}

void free_bytes(void* pointer, std::size_t n_bytes) {
    if (n_bytes < kLargeFrom_bytes) return ::operator delete(pointer, n_bytes);
    ::operator delete(pointer, n_bytes, kLargeAlignment);
}

}  // namespace luce::memory
