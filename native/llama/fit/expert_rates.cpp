#include "llama/fit/expert_rates.h"

#include <ggml-cpp.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace luce::llama {
namespace {

constexpr std::size_t kCopied = std::size_t{64} << 20;
constexpr std::size_t kMostWeights = std::size_t{256} << 20;  // more than any cache of a processor
constexpr int kTurns = 3;

// Of the fastest turn, after one that does not count.
double seconds_of(const std::function<void()>& work) {
    double best = std::numeric_limits<double>::infinity();
    for (int turn = 0; turn <= kTurns; ++turn) {
        const auto begin = std::chrono::steady_clock::now();
        work();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
        if (turn > 0) best = std::min(best, taken.count());
    }
    return best;
}

ggml_context_ptr without_memory(std::size_t n_tensors) {
    return ggml_context_ptr(ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
}

double link_rate(ggml_backend_dev_t gpu) {
    const ggml_context_ptr context = without_memory(1);
    ggml_tensor* target = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, kCopied);
    const ggml_backend_ptr stream(ggml_backend_dev_init(gpu, nullptr));
    if (!stream) return 0;
    const ggml_backend_buffer_ptr device(ggml_backend_alloc_ctx_tensors(context.get(), stream.get()));
    ggml_backend_buffer_type_t host_type = ggml_backend_dev_host_buffer_type(gpu);
    if (host_type == nullptr) host_type = ggml_backend_cpu_buffer_type();
    const ggml_backend_buffer_ptr host(ggml_backend_buft_alloc_buffer(host_type, kCopied));
    if (!device || !host) return 0;
    ggml_backend_buffer_clear(host.get(), 0);
    const void* source = ggml_backend_buffer_get_base(host.get());
    return kCopied / seconds_of([&] {
               ggml_backend_tensor_set_async(stream.get(), target, source, 0, kCopied);
               ggml_backend_synchronize(stream.get());
           });
}

// Token by token, no expert twice: what is in the processor's caches does not count.
double processor_rate(const ggml_tensor& like, std::int32_t n_used, std::int32_t n_threads) {
    const auto n_experts = std::min(like.ne[2], static_cast<std::int64_t>(kMostWeights / like.nb[2]));
    const std::int64_t n_tokens = n_experts / n_used;
    if (n_tokens == 0) return 0;
    const ggml_context_ptr context = without_memory(2 + 2 * static_cast<std::size_t>(n_tokens));
    ggml_tensor* weights = ggml_new_tensor_3d(context.get(), like.type, like.ne[0], like.ne[1], n_experts);
    ggml_tensor* values = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, like.ne[0], 1, 1);
    ggml_cgraph* graph = ggml_new_graph(context.get());
    std::vector<ggml_tensor*> ids;
    for (std::int64_t i = 0; i < n_tokens; ++i) {
        ids.push_back(ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, n_used, 1));
        ggml_build_forward_expand(graph, ggml_mul_mat_id(context.get(), weights, values, ids.back()));
    }
    const ggml_backend_ptr processor(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    if (!processor) return 0;
    const ggml_backend_reg_t kernels = ggml_backend_dev_backend_reg(ggml_backend_get_device(processor.get()));
    const auto set_n_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(kernels, "ggml_backend_set_n_threads"));
    if (set_n_threads != nullptr) set_n_threads(processor.get(), n_threads);
    const ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(context.get(), processor.get()));
    if (!memory) return 0;
    ggml_backend_buffer_clear(memory.get(), 0);
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(n_used));
    std::iota(chosen.begin(), chosen.end(), 0);
    for (ggml_tensor* one : ids) {
        ggml_backend_tensor_set(one, chosen.data(), 0, ggml_nbytes(one));
        for (std::int32_t& expert : chosen) expert += n_used;
    }
    const auto n_bytes = static_cast<double>(like.nb[2]) * static_cast<double>(n_tokens * n_used);
    return n_bytes / seconds_of([&] { ggml_backend_graph_compute(processor.get(), graph); });
}

}  // namespace

experts::ExpertRates measure_expert_rates(ggml_backend_dev_t gpu, const ggml_tensor& like, std::int32_t n_used,
                                          std::int32_t n_threads) {
    return {link_rate(gpu), processor_rate(like, n_used, n_threads)};
}

}  // namespace luce::llama
