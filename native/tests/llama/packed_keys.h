// What ggml makes of keys and queries before it multiplies them, as floats again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ggml.h>

#include "llama/model/backend.h"
#include "llama/scoring/key_products.h"

namespace luce::test {

inline std::size_t padded(std::size_t n_dims) { return (n_dims + 31) / 32 * 32; }

// A page's keys from pack_keys(): key by key, in each KV head by KV head.
inline std::vector<float> unpacked_keys(const llama::KeyShape& shape, std::span<const std::uint8_t> packed) {
    std::vector<float> keys(memory::kPageSize * shape.n_heads_kv * shape.n_dims);
    std::vector<float> row(padded(shape.n_dims));
    const auto n = static_cast<std::int64_t>(row.size());
    const std::uint8_t* from = packed.data();
    for (std::size_t head = 0; head < shape.n_heads_kv; ++head) {
        for (std::size_t key = 0; key < memory::kPageSize; ++key, from += ggml_row_size(GGML_TYPE_Q4_0, n)) {
            ggml_get_type_traits(GGML_TYPE_Q4_0)->to_float(from, row.data(), n);
            std::copy_n(row.begin(), shape.n_dims,
                        keys.begin() + static_cast<std::ptrdiff_t>((key * shape.n_heads_kv + head) * shape.n_dims));
        }
    }
    return keys;
}

// Rows of n_dims each, rounded to 8 bits.
inline std::vector<float> rounded_queries(const llama::KeyShape& shape, std::span<const float> queries) {
    static const llama::Backend backend;
    std::vector<float> rounded;
    const auto n = static_cast<std::int64_t>(padded(shape.n_dims));
    std::vector<std::uint8_t> bytes(ggml_row_size(GGML_TYPE_Q8_0, n));
    for (std::size_t begin = 0; begin < queries.size(); begin += shape.n_dims) {
        std::vector<float> row(padded(shape.n_dims));
        std::copy_n(queries.begin() + static_cast<std::ptrdiff_t>(begin), shape.n_dims, row.begin());
        ggml_quantize_chunk(GGML_TYPE_Q8_0, row.data(), bytes.data(), 0, 1, n, nullptr);
        ggml_get_type_traits(GGML_TYPE_Q8_0)->to_float(bytes.data(), row.data(), n);
        rounded.insert(rounded.end(), row.begin(), row.begin() + static_cast<std::ptrdiff_t>(shape.n_dims));
    }
    return rounded;
}

}  // namespace luce::test
