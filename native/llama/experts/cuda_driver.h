// CudaDriver: the calls of NVIDIA's driver that ggml has no word for, looked up at run time: luced is built without a
// CUDA toolkit. Names, numbers and layouts are the driver API's (cuda.h, "Virtual Memory Management").
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace luce::llama {

struct CudaDriver {
    using Pointer = unsigned long long;
    using Handle = unsigned long long;

    struct Location {
        int type = 0;
        int id = 0;
    };
    static constexpr int kDevice = 1, kHostNuma = 3;

    struct AllocationProperties {
        int type = 1;  // pinned
        int handle_types = 0;
        Location location;
        void* windows_metadata = nullptr;
        unsigned char flags[8] = {};
    };

    struct Access {
        Location location;
        int flags = 3;  // reads and writes
    };

    static constexpr int kOutOfMemory = 2;
    static constexpr int kHostNumaNode = 134;  // attribute of a device

    int (*init)(unsigned flags) = nullptr;
    int (*device_get)(int* device, int ordinal) = nullptr;
    int (*device_get_attribute)(int* value, int attribute, int device) = nullptr;
    int (*primary_context_retain)(void** context, int device) = nullptr;
    int (*primary_context_release)(int device) = nullptr;
    int (*context_set_current)(void* context) = nullptr;
    int (*context_synchronize)() = nullptr;
    int (*granularity)(std::size_t* n_bytes, const AllocationProperties* properties, int option) = nullptr;
    int (*address_reserve)(Pointer* at, std::size_t n_bytes, std::size_t alignment, Pointer wanted,
                           std::uint64_t flags) = nullptr;
    int (*address_free)(Pointer at, std::size_t n_bytes) = nullptr;
    int (*create)(Handle* handle, std::size_t n_bytes, const AllocationProperties* properties,
                  std::uint64_t flags) = nullptr;
    int (*release)(Handle handle) = nullptr;
    int (*map)(Pointer at, std::size_t n_bytes, std::size_t offset, Handle handle, std::uint64_t flags) = nullptr;
    int (*unmap)(Pointer at, std::size_t n_bytes) = nullptr;
    int (*set_access)(Pointer at, std::size_t n_bytes, const Access* access, std::size_t n) = nullptr;
    int (*to_device)(Pointer to, const void* from, std::size_t n_bytes) = nullptr;
    int (*to_host)(void* to, Pointer from, std::size_t n_bytes) = nullptr;
    int (*fill)(Pointer at, unsigned char value, std::size_t n_bytes) = nullptr;

    // Stays loaded. Errors: unsupported, naming what is missing.
    static Result<CudaDriver> load();
};

}  // namespace luce::llama
