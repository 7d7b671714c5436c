// LayerKeys: where the keys of one attention layer lie, and what has become of them on their way there. Found in the
// graph itself, not by what a model says of itself: which of a head's dimensions were rotated by position differs from
// model to model and from layer to layer. Must not know lanes, pages' names or scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

class llama_kv_cache;
struct llama_context;
struct ggml_tensor;

namespace luce::llama {

struct LayerKeys {
    std::int32_t layer = 0;
    ggml_tensor* storage = nullptr;  // a row a cell: the heads of a key, one behind the other
    std::int32_t type = 0;           // ggml's, of the storage
    std::size_t row_bytes = 0;       // of the storage
    std::size_t bytes_before = 0;    // of one position, in what KvRows copies before this layer's
    std::size_t n_heads = 0;         // of a query
    std::size_t n_heads_kv = 0;
    std::size_t head_size = 0;
    float scale = 1;              // of a product of query and key
    std::size_t mixed_block = 0;  // so many dimensions at a time were mixed by a Walsh-Hadamard matrix; 0: none
    // Those that are the same wherever the text stands; all where there are none, or where it is not known.
    std::vector<std::uint16_t> dimensions;

    // The dimensions of one head of a key or query, as it lies in the cache or goes into attention. The mixing is its
    // own inverse. REQUIRES: head.size() == head_size, out.size() == dimensions.size(); `head` is left in pieces.
    void take_dimensions(std::span<float> head, std::span<float> out) const;

    // Of each head the dimensions that are compared, head by head. Leaves `heads` in pieces.
    std::vector<float> compared(std::span<float> heads) const;

    // Keys as they lie in the storage, as floats: key by key, in each head by head.
    std::vector<float> to_floats(std::span<const std::uint8_t> rows) const;

    // What two contexts of the same model have in common.
    bool is_like(const LayerKeys& other) const;
};

// The tensor in the cache that a node of a graph writes rows to or attends to; the node itself where it is none.
const ggml_tensor* storage_of(const ggml_tensor* tensor);

// The layers of the cache whose keys can be found, ascending. No computation may be under way. Errors: unsupported.
Result<std::vector<LayerKeys>> all_layer_keys(llama_context& context, llama_kv_cache& cache);

// Of this layer of the cache; unset: of the last one whose attention is in the graph. No computation may be under way.
// Errors: unsupported (the cache has no such layer, and which it has; or its attention is not one operation).
Result<LayerKeys> find_layer_keys(llama_context& context, llama_kv_cache& cache, std::optional<std::int32_t> layer);

}  // namespace luce::llama
