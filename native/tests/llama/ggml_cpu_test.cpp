// ggml's CPU backend as we build it: which kernels it has, and what it does where there is no memory to compute in.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

TEST_SUITE("llama") {

namespace {

struct FreeBackend {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct FreeContext {
    void operator()(ggml_context* context) const { ggml_free(context); }
};
using Backend = std::unique_ptr<std::remove_pointer_t<ggml_backend_t>, FreeBackend>;
using Context = std::unique_ptr<ggml_context, FreeContext>;

// Rows of a quantised matrix by n_rows others, which are first quantised into the backend's scratch memory.
ggml_cgraph* product(ggml_context* context, std::int64_t n_rows) {
    ggml_tensor* a = ggml_new_tensor_2d(context, GGML_TYPE_Q8_0, 64, 4);
    ggml_tensor* b = ggml_new_tensor_2d(context, GGML_TYPE_F32, 64, n_rows);
    ggml_cgraph* graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, ggml_mul_mat(context, a, b));
    return graph;
}

Context new_context(bool has_data) { return Context(ggml_init({1 << 20, nullptr, !has_data})); }

}  // namespace

// cmake/WithoutAmx.cmake says why.
TEST_CASE("nothing is computed with AMX") { CHECK(ggml_cpu_has_amx_int8() == 0); }

// cmake/patches/cpu-work-refusal.patch
TEST_CASE("a graph that there is no scratch memory for is refused, and the next one is computed") {
    const Backend backend(ggml_backend_cpu_init());
    const Context small = new_context(true);
    ggml_cgraph* computed = product(small.get(), 2);
    const ggml_tensor* result = ggml_graph_node(computed, -1);
    const ggml_tensor* a = result->src[0];
    const std::vector<float> ones(static_cast<std::size_t>(ggml_nelements(a)), 1.0F);
    ggml_quantize_chunk(GGML_TYPE_Q8_0, ones.data(), a->data, 0, a->ne[1], a->ne[0], nullptr);
    std::fill_n(ggml_get_data_f32(result->src[1]), ggml_nelements(result->src[1]), 2.0F);
    REQUIRE(ggml_backend_graph_compute(backend.get(), computed) == GGML_STATUS_SUCCESS);

    const Context large = new_context(false);
    ggml_cgraph* too_large = product(large.get(), std::int64_t{1} << 44);
    CHECK(ggml_backend_graph_compute(backend.get(), too_large) == GGML_STATUS_ALLOC_FAILED);

    CHECK(ggml_backend_graph_compute(backend.get(), computed) == GGML_STATUS_SUCCESS);
    CHECK(ggml_get_data_f32(result)[0] == doctest::Approx(128).epsilon(0.01));
}

}  // TEST_SUITE("llama")
