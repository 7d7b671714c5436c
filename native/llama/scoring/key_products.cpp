#include "llama/scoring/key_products.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include <ggml-backend.h>
#include <ggml.h>

namespace luce::llama {
namespace {

constexpr std::size_t kKeys = memory::kPageSize;
constexpr ggml_type kKeyType = GGML_TYPE_Q4_0;
constexpr ggml_type kQueryType = GGML_TYPE_Q8_0;
constexpr std::size_t kMostProducts = std::size_t{1} << 18;  // of a batch, so that they stay in the cache

// Values of a row as ggml keeps it, in whole blocks; those behind the last dimension are zero.
std::size_t n_padded(const KeyShape& shape) {
    const auto block = static_cast<std::size_t>(ggml_blck_size(kKeyType));
    return (shape.n_dims + block - 1) / block * block;
}

std::size_t row_bytes(const KeyShape& shape, ggml_type type) {
    return ggml_row_size(type, static_cast<std::int64_t>(n_padded(shape)));
}

// `padded`: room for a row.
void round_row(ggml_type type, std::span<const float> values, std::vector<float>& padded, std::uint8_t* out) {
    std::copy(values.begin(), values.end(), padded.begin());
    ggml_quantize_chunk(type, padded.data(), out, 0, 1, static_cast<std::int64_t>(padded.size()), nullptr);
}

// Of a whole number of vectors; a product that is no number loses every comparison.
float largest_of(const float* products, std::size_t n) {
    static_assert(kKeys % kEndKeys == 0);
    std::array<float, kEndKeys> most;
    most.fill(-std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < n; i += kEndKeys) {
        for (std::size_t j = 0; j < kEndKeys; ++j) most[j] = products[i + j] > most[j] ? products[i + j] : most[j];
    }
    return *std::max_element(most.begin(), most.end());
}

// What is left to do with a batch's products, each thread with some of the rows.
struct Maxima {
    const float* products;
    std::span<const float> scales;
    std::size_t n_pages;
    float* of_page;
    float* at_end;

    static void find(ggml_tensor* /*result*/, int thread, int n_threads, void* self) {
        const Maxima& maxima = *static_cast<const Maxima*>(self);
        const std::size_t n_rows = maxima.scales.size();
        const std::size_t share =
            (n_rows + static_cast<std::size_t>(n_threads) - 1) / static_cast<std::size_t>(n_threads);
        const std::size_t begin = static_cast<std::size_t>(thread) * share;
        for (std::size_t row = begin; row < std::min(begin + share, n_rows); ++row) {
            const float* products = maxima.products + row * maxima.n_pages * kKeys;
            for (std::size_t page = 0; page < maxima.n_pages; ++page, products += kKeys) {
                const std::size_t to = page * n_rows + row;
                maxima.of_page[to] = largest_of(products, kKeys) * maxima.scales[row];
                maxima.at_end[to] = largest_of(products + kKeys - kEndKeys, kEndKeys) * maxima.scales[row];
            }
        }
    }
};

}  // namespace

std::size_t packed_bytes(const KeyShape& shape) { return shape.n_heads_kv * kKeys * row_bytes(shape, kKeyType); }

memory::Bytes pack_keys(const KeyShape& shape, std::span<const float> keys) {
    assert(keys.size() == kKeys * shape.n_heads_kv * shape.n_dims);
    memory::Bytes packed(packed_bytes(shape));
    std::vector<float> padded(n_padded(shape));
    std::uint8_t* out = packed.data();
    for (std::size_t head = 0; head < shape.n_heads_kv; ++head) {
        for (std::size_t key = 0; key < kKeys; ++key, out += row_bytes(shape, kKeyType)) {
            const std::size_t first = (key * shape.n_heads_kv + head) * shape.n_dims;
            round_row(kKeyType, keys.subspan(first, shape.n_dims), padded, out);
        }
    }
    return packed;
}

// KV head by KV head, query by query, head of the group by head.
struct KeyProducts::Queries {
    std::vector<std::uint8_t> rows;
    std::vector<float> scales;  // what their products are multiplied by
};

KeyProducts::KeyProducts(const KeyShape& shape, std::int32_t n_threads)
    : shape_(shape), backend_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)) {
    if (!backend_) return;
    const ggml_backend_reg_t kernels = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_.get()));
    const auto set_n_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(kernels, "ggml_backend_set_n_threads"));
    if (set_n_threads != nullptr) set_n_threads(backend_.get(), n_threads);
}

KeyProducts::Queries KeyProducts::round(std::span<const float> queries) const {
    assert(queries.size() % (shape_.n_heads * shape_.n_dims) == 0);
    const std::size_t n_queries = queries.size() / (shape_.n_heads * shape_.n_dims);
    const std::size_t group = shape_.n_heads / shape_.n_heads_kv;
    const std::size_t bytes = row_bytes(shape_, kQueryType);
    Queries rounded{std::vector<std::uint8_t>(n_queries * shape_.n_heads * bytes),
                    std::vector<float>(n_queries * shape_.n_heads)};
    std::vector<float> padded(n_padded(shape_));
    for (std::size_t query = 0; query < n_queries; ++query) {
        for (std::size_t head = 0; head < shape_.n_heads; ++head) {
            const auto values = queries.subspan((query * shape_.n_heads + head) * shape_.n_dims, shape_.n_dims);
            const std::size_t row = (head / group * n_queries + query) * group + head % group;
            const bool is_number = std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
            rounded.scales[row] = is_number ? 1 / std::sqrt(static_cast<float>(shape_.head_size))
                                            : std::numeric_limits<float>::quiet_NaN();
            if (is_number) round_row(kQueryType, values, padded, rounded.rows.data() + row * bytes);
        }
    }
    return rounded;
}

LargestProducts KeyProducts::run(std::span<const float> queries, std::span<const memory::PageKeys> pages) {
    const Queries rounded = round(queries);
    const std::size_t n_rows = rounded.scales.size();
    LargestProducts found;
    found.of_page.resize(n_rows * pages.size());
    found.at_end.resize(n_rows * pages.size());
    if (n_rows == 0) return found;
    const std::size_t n_batch = std::max<std::size_t>(1, kMostProducts / (n_rows * kKeys));
    for (std::size_t begin = 0; begin < pages.size(); begin += n_batch) {
        run_batch(rounded, pages.subspan(begin, std::min(n_batch, pages.size() - begin)),
                  found.of_page.data() + begin * n_rows, found.at_end.data() + begin * n_rows);
    }
    return found;
}

// All the pages' keys of a head are the rows of one matrix.
void KeyProducts::run_batch(const Queries& queries, std::span<const memory::PageKeys> pages, float* of_page,
                            float* at_end) {
    const std::size_t head_bytes = kKeys * row_bytes(shape_, kKeyType);
    keys_.resize(packed_bytes(shape_) * pages.size());
    for (std::size_t head = 0; head < shape_.n_heads_kv; ++head) {
        for (std::size_t page = 0; page < pages.size(); ++page) {
            assert(pages[page]->size() == packed_bytes(shape_));
            std::copy_n(pages[page]->data() + head * head_bytes, head_bytes,
                        keys_.data() + (head * pages.size() + page) * head_bytes);
        }
    }
    products_.resize(queries.scales.size() * pages.size() * kKeys);
    constexpr std::size_t kTensors = 4;
    const ggml_context_ptr context(
        ggml_init({kTensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(kTensors, false), nullptr, true}));
    const auto n_values = static_cast<std::int64_t>(n_padded(shape_));
    const auto n_heads = static_cast<std::int64_t>(shape_.n_heads_kv);
    ggml_tensor* keys =
        ggml_new_tensor_3d(context.get(), kKeyType, n_values, static_cast<std::int64_t>(pages.size() * kKeys), n_heads);
    keys->data = keys_.data();
    ggml_tensor* asked = ggml_new_tensor_3d(context.get(), kQueryType, n_values,
                                            static_cast<std::int64_t>(queries.scales.size()) / n_heads, n_heads);
    asked->data = const_cast<std::uint8_t*>(queries.rows.data());
    ggml_tensor* products = ggml_mul_mat(context.get(), keys, asked);
    products->data = products_.data();
    Maxima maxima{products_.data(), queries.scales, pages.size(), of_page, at_end};
    ggml_tensor* found =
        ggml_custom_4d(context.get(), GGML_TYPE_F32, 1, 1, 1, 1, &products, 1, Maxima::find, GGML_N_TASKS_MAX, &maxima);
    float nothing = 0;
    found->data = &nothing;
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), kTensors, false);
    ggml_build_forward_expand(graph, found);
    if (ggml_backend_graph_compute(backend_.get(), graph) == GGML_STATUS_SUCCESS) return;
    // Nothing was found out: pages of no scores stay in the order of their age.
    std::fill_n(of_page, queries.scales.size() * pages.size(), 0.0F);
    std::fill_n(at_end, queries.scales.size() * pages.size(), 0.0F);
}

}  // namespace luce::llama
