// What ggml's scheduler tells a backend of the graphs that it hands over.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml-impl.h>
#include <ggml.h>

TEST_SUITE("llama") {

namespace {

struct Free {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
    void operator()(ggml_backend_sched_t sched) const { ggml_backend_sched_free(sched); }
    void operator()(ggml_context* context) const { ggml_free(context); }
};
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Free>;

using Uids = std::vector<std::uint64_t>;

// The CPU's backend; of what is computed on it since the last take_uids() it keeps the uids.
class NamedGraphs {
public:
    NamedGraphs() : backend_(ggml_backend_cpu_init()) {
        compute_ = std::exchange(backend_->iface.graph_compute, [](ggml_backend_t backend, ggml_cgraph* graph) {
            uids_.push_back(graph->uid);
            return compute_(backend, graph);
        });
    }
    ggml_backend_t get() const { return backend_.get(); }
    static Uids take_uids() { return std::exchange(uids_, {}); }

private:
    Owned<ggml_backend_t> backend_;
    static inline decltype(ggml_backend_i::graph_compute) compute_ = nullptr;
    static inline Uids uids_;
};

}  // namespace

// cmake/patches/callback-graph-uid.patch
TEST_CASE("the parts that a callback cuts a graph into have uids of their own, the same ones every time") {
    const NamedGraphs backend;
    ggml_backend_t the_backend = backend.get();
    const Owned<ggml_backend_sched_t> sched(ggml_backend_sched_new(&the_backend, nullptr, 1, 64, false, false));
    const Owned<ggml_context*> context(ggml_init({1 << 20, nullptr, true}));
    ggml_tensor* input = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 4);
    ggml_set_input(input);
    std::array<ggml_tensor*, 4> nodes{};
    for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i] = ggml_sqr(context.get(), i == 0 ? input : nodes[i - 1]);
    ggml_cgraph* graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, nodes.back());
    REQUIRE(ggml_backend_sched_alloc_graph(sched.get(), graph));
    const std::array<float, 4> values{1, 1, 1, 1};
    ggml_backend_tensor_set(input, values.data(), 0, sizeof values);

    const auto uids_seeing = [&](ggml_tensor* seen) {
        const auto is_seen = [](ggml_tensor* node, bool is_question, void* wanted) {
            return !is_question || node == wanted;
        };
        ggml_backend_sched_set_eval_callback(sched.get(), seen == nullptr ? nullptr : +is_seen, seen);
        REQUIRE(ggml_backend_sched_graph_compute(sched.get(), graph) == GGML_STATUS_SUCCESS);
        return NamedGraphs::take_uids();
    };
    const Uids whole = uids_seeing(nullptr);
    const Uids cut = uids_seeing(nodes[1]);
    const Uids cut_elsewhere = uids_seeing(nodes[2]);
    REQUIRE(whole.size() == 1);
    REQUIRE(cut.size() == 2);
    REQUIRE(cut_elsewhere.size() == 2);
    const std::vector<std::uint64_t> all{whole[0], cut[0], cut[1], cut_elsewhere[0], cut_elsewhere[1]};
    for (std::size_t i = 0; i < all.size(); ++i) {
        CHECK(all[i] != 0);
        for (std::size_t j = 0; j < i; ++j) CHECK(all[i] != all[j]);
    }
    CHECK(uids_seeing(nodes[1]) == cut);
    CHECK(uids_seeing(nullptr) == whole);
}

}  // TEST_SUITE("llama")
