"""Which logs tell of memory that ran out: the texts that ggml's backends end a process with, as luced logs them."""

from __future__ import annotations

import pytest

from luce.supervisor.engine.oom_recovery import line_about_memory

CUDA = "/src/ggml/src/ggml-cuda"


def cuda_death(why: str, where: str, statement: str) -> list[str]:
    """As ggml_cuda_error() says it: `why` is the CUDA runtime's, the driver's or cuBLAS's name of the error."""
    return [
        f"luced error: CUDA error: {why}",
        f"luced error:   current device: 0, in function {where}",
        f"luced error:   {statement}",
        f"luced error: fatal error of the engine: {CUDA}/ggml-cuda.cu:109: CUDA error",
    ]


CUDA_OUT_OF_MEMORY = {
    "the pool's next piece": cuda_death("out of memory", "alloc", "cuMemCreate(&handle, reserve_size, &prop, 0)"),
    "the pool's next piece, mapped": cuda_death(
        "out of memory", "alloc", "cuMemMap(start_ptr, reserve_size, 0, handle, 0)"
    ),
    "the pool without virtual memory": cuda_death("out of memory", "alloc", "err"),
    "a graph": cuda_death(
        "out of memory",
        "ggml_cuda_graph_evaluate_and_capture",
        "cudaGraphInstantiate(&graph->instance, graph->graph, NULL, NULL, 0)",
    ),
    "a graph's upload": cuda_death(
        "out of memory",
        "ggml_cuda_graph_evaluate_and_capture",
        "cudaGraphLaunch(graph->instance, cuda_ctx->stream())",
    ),
    "a stream": cuda_death(
        "out of memory", "stream", "cudaStreamCreateWithFlags(&streams[device][stream], cudaStreamNonBlocking)"
    ),
    "cuBLAS's workspace": cuda_death(
        "out of memory",
        "cublas_handle",
        "cudaMalloc(&cublas_workspaces[device][curr_stream_no], cublas_workspace_sizes[device])",
    ),
    "cuBLAS, CUDA 12 and later": cuda_death(
        "the resource allocation failed", "cublas_handle", "cublasCreate_v2(&cublas_handles[device][curr_stream_no])"
    ),
    "cuBLAS, CUDA 11": cuda_death(
        "CUBLAS_STATUS_ALLOC_FAILED", "cublas_handle", "cublasCreate_v2(&cublas_handles[device][curr_stream_no])"
    ),
    "cuBLAS that cannot begin, CUDA 12 and later": cuda_death(
        "the library was not initialized", "cublas_handle", "cublasCreate_v2(&cublas_handles[device][curr_stream_no])"
    ),
    "cuBLAS that cannot begin, CUDA 11": cuda_death(
        "CUBLAS_STATUS_NOT_INITIALIZED", "cublas_handle", "cublasCreate_v2(&cublas_handles[device][curr_stream_no])"
    ),
    "a buffer": [
        "luced error: alloc_buffer: allocating 812.00 MiB on device 0: cudaMalloc failed: out of memory",
    ],
    "ROCm": ["luced error: ROCm error: out of memory", "luced error:   current device: 0, in function alloc"],
    "ROCm's virtual memory": [
        f"luced error: fatal error of the engine: {CUDA}/ggml-cuda.cu:580: HipVMM Failure: out of memory"
    ],
    "ROCm's BLAS": ["luced error: ROCm error: CUBLAS_STATUS_ALLOC_FAILED"],
}
OTHERS_OUT_OF_MEMORY = {
    "a graph's buffers": [
        "luced error: ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 1048576"
    ],
    "the host": ["luced error: terminate called after throwing an instance of 'std::bad_alloc'"],
    "Vulkan": ["luced error: vk::Device::allocateMemory: ErrorOutOfDeviceMemory"],
    "Vulkan, the host's": ["luced error: vk::Queue::submit: ErrorOutOfHostMemory"],
    "SYCL": ["luced error: UR backend failed. UR backend returns:39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"],
    "Metal": [
        "luced error: error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    ],
}
NOT_MEMORY = {
    "a bad address": cuda_death(
        "an illegal memory access was encountered",
        "ggml_backend_cuda_synchronize",
        "cudaStreamSynchronize(cuda_ctx->stream())",
    ),
    "a failed launch": cuda_death("unspecified launch failure", "launch", "cudaGetLastError()"),
    "an old driver": cuda_death(
        "CUDA driver version is insufficient for CUDA runtime version", "init", "cudaGetDeviceCount(&count)"
    ),
    "cuBLAS that failed": cuda_death("CUBLAS_STATUS_EXECUTION_FAILED", "mul_mat", "cublasGemmEx(...)"),
    "longer ago": ["luced error: ggml_cuda: cudaMalloc failed: out of memory", *["luced info: loading: 5 %"] * 12],
    "the pool, not the memory": ["luced error: the pool is full of what running requests need"],
    "a pool that was made smaller in time": [
        "luced warn: no memory for the computation's buffers: the pool is 1536 tokens from now on, not 2048",
    ],
    "nothing": [],
}


@pytest.mark.parametrize("log", CUDA_OUT_OF_MEMORY.values(), ids=CUDA_OUT_OF_MEMORY)
def test_cudas_backend_is_understood_when_memory_runs_out(log: list[str]) -> None:
    assert line_about_memory(log) == log[0]


@pytest.mark.parametrize("log", OTHERS_OUT_OF_MEMORY.values(), ids=OTHERS_OUT_OF_MEMORY)
def test_others_are_as_well(log: list[str]) -> None:
    assert line_about_memory(["luced info: before", *log]) == log[0]


@pytest.mark.parametrize("log", NOT_MEMORY.values(), ids=NOT_MEMORY)
def test_what_is_no_want_of_memory_is_not_taken_for_it(log: list[str]) -> None:
    assert line_about_memory(log) is None
