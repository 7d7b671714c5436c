// Which texts tell of memory that ran out: those that ggml's backends log, or throw, before a process ends.
#include <doctest/doctest.h>

#include "llama/model/memory_shortage.h"

using namespace luce::llama;

TEST_SUITE("memory shortage") {

TEST_CASE("the backends' words are understood") {
    for (const char* text :
         {"CUDA error: out of memory", "CUDA error: the resource allocation failed",
          "CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: the library was not initialized",
          "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED",
          "alloc_buffer: allocating 812.00 MiB on device 0: cudaMalloc failed: out of memory",
          "ROCm error: out of memory", "ggml-cuda.cu:580: HipVMM Failure: out of memory",
          "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 1048576", "std::bad_alloc",
          "vk::Device::allocateMemory: ErrorOutOfDeviceMemory", "vk::Queue::submit: ErrorOutOfHostMemory",
          "UR backend failed. UR backend returns:39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
          "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"}) {
        CAPTURE(text);
        CHECK(tells_of_memory(text));
    }
}

TEST_CASE("what is no want of memory is not taken for it") {
    for (const char* text :
         {"CUDA error: an illegal memory access was encountered",
          "  current device: 0, in function ggml_backend_cuda_synchronize", "CUDA error: unspecified launch failure",
          "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
          "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", "the pool is full of what running requests need",
          "out of range", "out of ", ""}) {
        CAPTURE(text);
        CHECK_FALSE(tells_of_memory(text));
    }
}

TEST_CASE("only what was told just now is why something fails") {
    MemoryShortage shortage;
    CHECK(shortage.recent(0).empty());
    shortage.note("CUDA error: out of memory", 100);
    shortage.note("  current device: 0, in function alloc", 100);
    CHECK(shortage.recent(101) == "CUDA error: out of memory");
    CHECK(shortage.recent(200).empty());
}

}  // TEST_SUITE("memory shortage")
