#include "llama/scoring/computing_threads.h"

#include <ggml-backend.h>
#include <ggml.h>

namespace luce::llama {
namespace {

using Work = std::function<void(std::size_t)>;

void call(ggml_tensor* /*result*/, int thread, int /*n_threads*/, void* work) {
    (*static_cast<const Work*>(work))(static_cast<std::size_t>(thread));
}

}  // namespace

ComputingThreads::ComputingThreads(std::int32_t n_threads) {
    if (n_threads < 2) return;
    backend_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    if (!backend_) return;
    const ggml_backend_reg_t kernels = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_.get()));
    const auto set_n_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(kernels, "ggml_backend_set_n_threads"));
    if (set_n_threads != nullptr) set_n_threads(backend_.get(), n_threads);
}

void ComputingThreads::run(const Work& work) {
    if (!backend_) return work(0);
    const ggml_context_ptr context(
        ggml_init({ggml_tensor_overhead() + ggml_graph_overhead_custom(1, false), nullptr, true}));
    ggml_tensor* operation = ggml_custom_4d(context.get(), GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, call,
                                            GGML_N_TASKS_MAX, const_cast<Work*>(&work));
    float nothing = 0;
    operation->data = &nothing;
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 1, false);
    ggml_build_forward_expand(graph, operation);
    // What fails has not begun: everything is left to do.
    if (ggml_backend_graph_compute(backend_.get(), graph) != GGML_STATUS_SUCCESS) work(0);
}

}  // namespace luce::llama
