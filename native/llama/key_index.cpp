#include "llama/key_index.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cmath>
#include <limits>
#include <string>
#include <thread>

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

namespace luce::llama {
namespace {

using memory::Bytes;
using memory::PageKeys;

// How keys are kept: in blocks of 32 values with a scale each.
constexpr ggml_type kKeyType = GGML_TYPE_Q4_0;
constexpr std::size_t kKeys = memory::kPageSize;
constexpr double kLeastDeviation = 1e-4;
// Keys of the page before that speak for a page: a sentence's. As many as a step of run() compares.
constexpr std::size_t kReach = 16;
// Of a thread that is worth starting.
constexpr std::size_t kLeastPages = 16;

Error unsupported(std::string text) { return {ErrorCode::unsupported, std::move(text)}; }

std::size_t row_bytes(std::size_t n_dims) { return ggml_row_size(kKeyType, static_cast<std::int64_t>(n_dims)); }

void to_floats(const Bytes& encoded, std::vector<float>& floats) {
    ggml_get_type_traits(kKeyType)->to_float(encoded.data(), floats.data(), static_cast<std::int64_t>(floats.size()));
}

}  // namespace

// One thread's matrix products: a backend of its own and room for one page's keys and results. The keys are made floats
// again first, once a page: ggml's products of floats are faster than those of 4-bit keys (by a third with AVX-512),
// and round no query.
class KeyIndex::Multiplier {
public:
    static std::unique_ptr<Multiplier> create() {
        ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
        if (backend == nullptr) return nullptr;
        auto multiplier = std::make_unique<Multiplier>();
        multiplier->backend_.reset(backend);
        const ggml_backend_reg_t kernels = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
        const auto set_n_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(kernels, "ggml_backend_set_n_threads"));
        if (set_n_threads != nullptr) set_n_threads(backend, 1);
        return multiplier;
    }

    // The product that run() computes from now on: of each KV head, kKeys keys by n_queries queries, from `queries`. Of
    // a key's n_padded dimensions the first n_dims.
    bool open(std::size_t n_dims, std::size_t n_padded, std::size_t n_heads_kv, std::size_t n_queries,
              const float* queries) {
        const auto dims = static_cast<std::int64_t>(n_dims);
        const auto heads = static_cast<std::int64_t>(n_heads_kv);
        context_.reset(ggml_init({4 * ggml_tensor_overhead() + ggml_graph_overhead_custom(2, false), nullptr, true}));
        ggml_tensor* keys =
            ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, dims, static_cast<std::int64_t>(kKeys), heads);
        keys->nb[1] = n_padded * sizeof(float);
        keys->nb[2] = keys->nb[1] * kKeys;
        keys->nb[3] = keys->nb[2] * n_heads_kv;
        keys_.resize(n_padded * kKeys * n_heads_kv);
        keys->data = keys_.data();
        ggml_tensor* asked =
            ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, dims, static_cast<std::int64_t>(n_queries), heads);
        asked->data = const_cast<float*>(queries);
        ggml_tensor* product = ggml_mul_mat(context_.get(), keys, asked);
        product_.resize(static_cast<std::size_t>(ggml_nelements(product)));
        product->data = product_.data();
        graph_ = ggml_new_graph_custom(context_.get(), 2, false);
        ggml_build_forward_expand(graph_, product);
        return ggml_backend_supports_op(backend_.get(), product);
    }

    // The largest product with a key of the page and with one of its last kReach, of each KV head and query.
    bool run(const Bytes& page, std::span<float> largest, std::span<float> at_end) {
        to_floats(page, keys_);
        if (ggml_backend_graph_compute(backend_.get(), graph_) != GGML_STATUS_SUCCESS) return false;
        const float* products = product_.data();
        for (std::size_t row = 0; row < largest.size(); ++row) {
            // In steps of a vector, so that the compiler makes one of it.
            std::array<float, kReach> maxima;
            std::copy_n(products, maxima.size(), maxima.begin());
            for (std::size_t i = maxima.size(); i < kKeys; i += maxima.size()) {
                for (std::size_t j = 0; j < maxima.size(); ++j) {
                    maxima[j] = products[i + j] > maxima[j] ? products[i + j] : maxima[j];
                }
            }
            largest[row] = *std::max_element(maxima.begin(), maxima.end());
            products += kKeys;
            at_end[row] = *std::max_element(products - kReach, products);
        }
        return true;
    }

private:
    ggml_backend_ptr backend_;
    ggml_context_ptr context_;
    ggml_cgraph* graph_ = nullptr;
    std::vector<float> keys_;
    std::vector<float> product_;
};

Result<std::unique_ptr<KeyIndex>> KeyIndex::create(const KeyShape& shape, std::int32_t n_threads) {
    if (shape.n_dims == 0 || shape.n_heads_kv == 0 || shape.n_heads == 0 || shape.n_heads % shape.n_heads_kv != 0) {
        return unsupported(std::to_string(shape.n_heads) + " heads of queries and " + std::to_string(shape.n_heads_kv) +
                           " of keys with " + std::to_string(shape.n_dims) + " dimensions do not go together");
    }
    std::vector<std::unique_ptr<Multiplier>> multipliers;
    for (std::int32_t i = 0; i < std::max(n_threads, 1); ++i) multipliers.push_back(Multiplier::create());
    std::unique_ptr<KeyIndex> index(new KeyIndex(shape, std::move(multipliers)));
    for (const auto& multiplier : index->multipliers_) {
        if (!multiplier || !multiplier->open(index->n_multiplied(), index->n_padded(), shape.n_heads_kv, 1, nullptr)) {
            return unsupported("the CPU's backend computes no matrix products");
        }
    }
    return index;
}

KeyIndex::KeyIndex(const KeyShape& shape, std::vector<std::unique_ptr<Multiplier>> multipliers)
    : shape_(shape), multipliers_(std::move(multipliers)) {}

KeyIndex::~KeyIndex() = default;

std::size_t KeyIndex::n_padded() const {
    const auto block = static_cast<std::size_t>(ggml_blck_size(kKeyType));
    return (shape_.n_dims + block - 1) / block * block;
}

// ggml's fast products are of whole vectors, of 16 floats at the most.
std::size_t KeyIndex::n_multiplied() const { return (shape_.n_dims + 15) / 16 * 16; }

std::size_t KeyIndex::keys_bytes() const { return shape_.n_heads_kv * kKeys * row_bytes(n_padded()); }

// KV head by KV head, so that each head's are a matrix.
PageKeys KeyIndex::encode(std::span<const float> keys) const {
    assert(keys.size() == kKeys * shape_.n_heads_kv * shape_.n_dims);
    std::vector<float> by_head(shape_.n_heads_kv * kKeys * n_padded(), 0.0F);
    const float* from = keys.data();
    for (std::size_t key = 0; key < kKeys; ++key) {
        for (std::size_t head = 0; head < shape_.n_heads_kv; ++head, from += shape_.n_dims) {
            std::copy_n(from, shape_.n_dims,
                        by_head.begin() + static_cast<std::ptrdiff_t>((head * kKeys + key) * n_padded()));
        }
    }
    auto encoded = std::make_shared<Bytes>(keys_bytes());
    ggml_quantize_chunk(kKeyType, by_head.data(), encoded->data(), 0,
                        static_cast<std::int64_t>(shape_.n_heads_kv * kKeys), static_cast<std::int64_t>(n_padded()),
                        nullptr);
    return encoded;
}

std::vector<float> KeyIndex::decode(const Bytes& encoded) const {
    assert(encoded.size() == keys_bytes());
    std::vector<float> by_head(shape_.n_heads_kv * kKeys * n_padded());
    to_floats(encoded, by_head);
    std::vector<float> keys;
    keys.reserve(kKeys * shape_.n_heads_kv * shape_.n_dims);
    for (std::size_t key = 0; key < kKeys; ++key) {
        for (std::size_t head = 0; head < shape_.n_heads_kv; ++head) {
            const auto row = by_head.begin() + static_cast<std::ptrdiff_t>((head * kKeys + key) * n_padded());
            keys.insert(keys.end(), row, row + static_cast<std::ptrdiff_t>(shape_.n_dims));
        }
    }
    return keys;
}

std::vector<float> KeyIndex::arranged(std::span<const float> queries) const {
    const std::size_t n_queries = queries.size() / (shape_.n_heads * shape_.n_dims);
    const std::size_t group = shape_.n_heads / shape_.n_heads_kv;
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_size));
    std::vector<float> by_head(n_queries * shape_.n_heads * n_multiplied(), 0.0F);
    const float* from = queries.data();
    for (std::size_t query = 0; query < n_queries; ++query) {
        for (std::size_t head = 0; head < shape_.n_heads; ++head, from += shape_.n_dims) {
            const std::size_t row = (head / group * n_queries + query) * group + head % group;
            std::transform(from, from + shape_.n_dims,
                           by_head.begin() + static_cast<std::ptrdiff_t>(row * n_multiplied()),
                           [scale](float value) { return value * scale; });
        }
    }
    return by_head;
}

KeyIndex::Products KeyIndex::products(std::span<const float> queries, std::span<const PageKeys> pages) {
    assert(queries.size() % (shape_.n_heads * shape_.n_dims) == 0);
    const std::vector<float> asked = arranged(queries);
    const std::size_t n_rows = asked.size() / n_multiplied();
    Products found{std::vector<float>(n_rows * pages.size()), std::vector<float>(n_rows * pages.size())};
    std::atomic<std::size_t> next = 0;
    std::atomic<bool> failed = false;
    const auto work = [&](Multiplier& multiplier) {
        multiplier.open(n_multiplied(), n_padded(), shape_.n_heads_kv, n_rows / shape_.n_heads_kv, asked.data());
        for (std::size_t i = next++; i < pages.size(); i = next++) {
            assert(pages[i] && pages[i]->size() == keys_bytes());
            const auto of_page = [&](std::vector<float>& rows) { return std::span(rows).subspan(i * n_rows, n_rows); };
            if (!multiplier.run(*pages[i], of_page(found.largest), of_page(found.at_end))) failed = true;
        }
    };
    const std::size_t n_threads = std::min(multipliers_.size(), std::max<std::size_t>(1, pages.size() / kLeastPages));
    {
        std::vector<std::jthread> others;
        for (std::size_t i = 1; i < n_threads; ++i) others.emplace_back(work, std::ref(*multipliers_[i]));
        work(*multipliers_[0]);
    }
    if (failed) return {};
    return found;
}

// A page is as large as the end of the one before it.
void KeyIndex::reach_over(Products& products, std::size_t n_pages) {
    if (products.largest.empty()) return;
    const std::size_t n_rows = products.largest.size() / n_pages;
    for (std::size_t i = n_rows; i < products.largest.size(); ++i) {
        products.largest[i] = std::max(products.largest[i], products.at_end[i - n_rows]);
    }
}

std::vector<float> KeyIndex::largest_products(std::span<const float> queries, std::span<const PageKeys> pages) {
    const std::vector<float> largest = products(queries, pages).largest;
    const std::size_t n_queries = queries.size() / (shape_.n_heads * shape_.n_dims);
    const std::size_t group = shape_.n_heads / shape_.n_heads_kv;
    std::vector<float> ordered;
    ordered.reserve(largest.size());
    for (std::size_t page = 0; !largest.empty() && page < pages.size(); ++page) {
        const float* const of_page = largest.data() + page * n_queries * shape_.n_heads;
        for (std::size_t query = 0; query < n_queries; ++query) {
            for (std::size_t head = 0; head < shape_.n_heads; ++head) {
                ordered.push_back(of_page[(head / group * n_queries + query) * group + head % group]);
            }
        }
    }
    return ordered;
}

std::vector<float> KeyIndex::scores(std::span<const float> queries, std::span<const PageKeys> pages) {
    Products found = products(queries, pages);
    reach_over(found, pages.size());
    return normalised(found.largest, pages.size());
}

std::vector<float> KeyIndex::scores(std::span<const float> queries, std::span<const PageKeys> blocks,
                                    std::span<const std::size_t> ends) {
    assert(!ends.empty() && ends.back() == blocks.size());
    Products found = products(queries, blocks);
    reach_over(found, blocks.size());
    std::vector<float>& largest = found.largest;
    if (largest.empty()) return {};
    // Page by page to the front: what is written over has been looked at.
    const std::size_t n_rows = largest.size() / blocks.size();
    std::size_t block = 0;
    for (std::size_t page = 0; page < ends.size(); ++page) {
        float* const most = largest.data() + page * n_rows;
        std::copy_n(largest.data() + block * n_rows, n_rows, most);
        while (++block < ends[page]) {
            const float* const other = largest.data() + block * n_rows;
            for (std::size_t row = 0; row < n_rows; ++row) most[row] = std::max(most[row], other[row]);
        }
    }
    largest.resize(ends.size() * n_rows);
    return normalised(largest, ends.size());
}

std::vector<float> KeyIndex::normalised(std::span<const float> largest, std::size_t n_all) {
    if (largest.empty()) return {};
    const std::size_t n_rows = largest.size() / n_all;
    const auto n_pages = static_cast<double>(n_all);
    // Page by page, as they lie; first the means, so that the deviations lose nothing.
    std::vector<double> means(n_rows, 0.0);
    std::vector<double> squares(n_rows, 0.0);
    const auto for_each = [&](const auto& visit) {
        for (std::size_t page = 0; page < n_all; ++page) {
            for (std::size_t row = 0; row < n_rows; ++row) visit(page, row, largest[page * n_rows + row]);
        }
    };
    for_each([&](std::size_t, std::size_t row, double s) { means[row] += s; });
    for (double& mean : means) mean /= n_pages;
    for_each([&](std::size_t, std::size_t row, double s) { squares[row] += (s - means[row]) * (s - means[row]); });
    for (double& square : squares) square = std::sqrt(square / n_pages) + kLeastDeviation;
    std::vector<float> scores(n_all, std::numeric_limits<float>::lowest());
    for_each([&](std::size_t page, std::size_t row, double s) {
        const auto z = static_cast<float>((s - means[row]) / squares[row]);
        // A query or key that is no number says nothing: it loses every comparison.
        if (z > scores[page]) scores[page] = z;
    });
    return scores;
}

}  // namespace luce::llama
