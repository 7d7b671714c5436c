// Blob: bytes that never change, shared by whoever still needs them (a page's rows in host memory and the thread that
// writes them to disk, say). PageName: what a page is called wherever it lies.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/token.h"

namespace luce::memory {

// Throws std::bad_alloc.
void* allocate_bytes(std::size_t n_bytes);
void free_bytes(void* pointer, std::size_t n_bytes);

// std::allocator, but Bytes(n) and resize() leave new bytes as they are: hundreds of MB are not touched by a thread
// that only says where they go. Large blocks ask for large pages: a checkpoint of 100 MB is 25,000 page faults
// otherwise.
template <typename T>
struct UntouchedAllocator {
    using value_type = T;

    UntouchedAllocator() = default;
    template <typename U>
    UntouchedAllocator(const UntouchedAllocator<U>&) {}

    T* allocate(std::size_t n) { return static_cast<T*>(allocate_bytes(n * sizeof(T))); }
    void deallocate(T* pointer, std::size_t n) { free_bytes(pointer, n * sizeof(T)); }

    template <typename U>
    void construct(U* pointer) {
        ::new (static_cast<void*>(pointer)) U;
    }
    template <typename U, typename... Arguments>
    void construct(U* pointer, Arguments&&... arguments) {
        ::new (static_cast<void*>(pointer)) U(std::forward<Arguments>(arguments)...);
    }

    bool operator==(const UntouchedAllocator&) const = default;
};

using Bytes = std::vector<std::uint8_t, UntouchedAllocator<std::uint8_t>>;
using Blob = std::shared_ptr<const Bytes>;

inline constexpr std::int32_t kPageSize = 64;  // positions

// The chained hash of every token up to the page's end, salted with the memory identity (page_name.h).
struct PageName {
    std::array<std::uint8_t, 16> bytes{};
    auto operator<=>(const PageName&) const = default;
};

// What cannot be cut by position, valid at one position of one text, and what is needed to go on from there.
struct CheckpointData {
    Bytes state;                // libllama's partial state; empty on pure attention
    Bytes rows;                 // of the positions behind the last full page, as KvDevice::read gives them
    std::vector<float> logits;  // of the last position; empty: not kept

    std::size_t n_bytes() const { return state.size() + rows.size() + logits.size() * sizeof(float); }
};
using CheckpointBlob = std::shared_ptr<const CheckpointData>;

}  // namespace luce::memory

template <>
struct std::hash<luce::memory::PageName> {
    // The name is a hash already.
    std::size_t operator()(const luce::memory::PageName& name) const noexcept {
        std::size_t h = 0;
        std::memcpy(&h, name.bytes.data(), sizeof h);
        return h;
    }
};
