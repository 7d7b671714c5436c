#include "llama/scoring/layer_keys.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include <ggml.h>

#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-memory.h"
#include "llama/kv_cache/kv_rows.h"

namespace luce::llama {
namespace {

Error unsupported(std::string text) { return {ErrorCode::unsupported, std::move(text)}; }

struct Operations {
    const ggml_tensor* write = nullptr;      // of new keys into the cache
    const ggml_tensor* attention = nullptr;  // of the layer whose keys these are
};

// Layers that share another one's rows attend to them as well, behind the layer itself.
Operations operations_on(ggml_cgraph* graph, const ggml_tensor* storage) {
    Operations found;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_SET_ROWS && storage_of(node) == storage) found.write = node;
        if (found.write != nullptr && node->op == GGML_OP_FLASH_ATTN_EXT && storage_of(node->src[1]) == storage) {
            found.attention = node;
            break;
        }
    }
    return found;
}

// What was done last to the keys that are written: rotation by position, mixing, or what leads to neither for certain.
struct KeyPath {
    std::size_t mixed_block = 0;
    std::size_t first_rotated = 0;
    std::size_t n_rotated = 0;
    bool is_known = false;
};

KeyPath path_of(const ggml_tensor* keys, std::size_t head_size) {
    KeyPath path;
    for (const ggml_tensor* at = keys; at != nullptr;) {
        const bool is_whole = at->src[0] != nullptr && ggml_nelements(at) == ggml_nelements(at->src[0]);
        switch (at->op) {
            case GGML_OP_VIEW:
            case GGML_OP_RESHAPE:
            case GGML_OP_CONT:
                if (!is_whole) return path;
                at = at->src[0];
                break;
            case GGML_OP_MUL_MAT:
                if (at->op_params[1] != GGML_HINT_SRC0_IS_HADAMARD) return path;
                path.mixed_block = static_cast<std::size_t>(at->src[0]->ne[0]);
                at = at->src[1];
                break;
            case GGML_OP_ROPE:
                path.n_rotated = static_cast<std::size_t>(at->op_params[1]);
                path.first_rotated = static_cast<std::size_t>(at->op_params[15]);
                path.is_known =
                    at->ne[0] == static_cast<std::int64_t>(head_size) && at->op_params[2] != GGML_ROPE_TYPE_VISION;
                return path;
            default: return path;
        }
    }
    return path;
}

void choose_dimensions(const KeyPath& path, LayerKeys& keys) {
    const bool all_rotated = path.n_rotated >= keys.head_size;
    const bool is_mixed_evenly = path.mixed_block == 0 || keys.head_size % path.mixed_block == 0;
    if (!path.is_known || all_rotated || !is_mixed_evenly) {
        keys.dimensions.resize(keys.head_size);
        std::iota(keys.dimensions.begin(), keys.dimensions.end(), std::uint16_t{0});
        return;
    }
    keys.mixed_block = path.mixed_block;
    for (std::size_t i = 0; i < keys.head_size; ++i) {
        const bool is_rotated = i >= path.first_rotated && i < path.first_rotated + path.n_rotated;
        if (!is_rotated) keys.dimensions.push_back(static_cast<std::uint16_t>(i));
    }
}

// By the fast transform: n log n sums instead of a matrix.
void unmix(std::span<float> block) {
    for (std::size_t half = 1; half < block.size(); half *= 2) {
        for (std::size_t begin = 0; begin < block.size(); begin += 2 * half) {
            for (std::size_t i = begin; i < begin + half; ++i) {
                const float a = block[i];
                const float b = block[i + half];
                block[i] = a + b;
                block[i + half] = a - b;
            }
        }
    }
    const float scale = 1.0F / std::sqrt(static_cast<float>(block.size()));
    for (float& value : block) value *= scale;
}

// The graph of a call of one token, as it would be computed: only split among devices, not given memory.
ggml_cgraph* graph_of_one_token(llama_context& context) {
    context.synchronize();
    const llama_memory_context_ptr memory = context.get_memory()->init_full();
    return memory ? context.graph_reserve(1, 1, 1, memory.get(), true) : nullptr;
}

Result<LayerKeys> keys_in(ggml_cgraph* graph, llama_kv_cache& cache, std::int32_t layer) {
    LayerKeys keys;
    keys.layer = layer;
    keys.storage = cache.get_k_storage(layer);
    const Operations found = operations_on(graph, keys.storage);
    if (found.attention == nullptr) {
        return unsupported("the graph has no flash attention over the keys of layer " + std::to_string(layer));
    }
    const ggml_tensor* queries = found.attention->src[0];
    const ggml_tensor* attended = found.attention->src[1];
    keys.head_size = static_cast<std::size_t>(queries->ne[0]);
    keys.n_heads = static_cast<std::size_t>(queries->ne[2]);
    keys.n_heads_kv = static_cast<std::size_t>(attended->ne[2]);
    std::memcpy(&keys.scale, found.attention->op_params, sizeof keys.scale);
    keys.type = keys.storage->type;
    keys.row_bytes = keys.storage->nb[1];
    const auto stored = static_cast<std::size_t>(keys.storage->ne[0]);
    if (queries->type != GGML_TYPE_F32 || keys.head_size * keys.n_heads_kv != stored) {
        return unsupported("the attention of layer " + std::to_string(layer) + " does not take its keys as they lie");
    }
    const KvRows rows(cache);
    for (const ggml_tensor* tensor : rows.tensors()) {
        if (tensor == keys.storage) break;
        keys.bytes_before += tensor->nb[1];
    }
    choose_dimensions(path_of(found.write->src[0], keys.head_size), keys);
    return keys;
}

std::vector<std::int32_t> layers_of(const llama_kv_cache& cache) {
    std::vector<std::int32_t> layers;
    for (const std::uint32_t id : cache.get_layer_ids()) layers.push_back(static_cast<std::int32_t>(id));
    return layers;
}

// What `look` finds in that graph.
template <typename Look>
auto in_graph_of_one_token(llama_context& context, const Look& look) -> decltype(look(nullptr)) {
    constexpr const char* kNoGraph = "no graph could be made to look for the attention in";
    try {
        ggml_cgraph* graph = graph_of_one_token(context);
        if (graph == nullptr) return unsupported(kNoGraph);
        return look(graph);
    } catch (const std::exception& e) {
        return unsupported(std::string(kNoGraph) + ": " + e.what());
    }
}

Error no_such_layer(std::int32_t layer, const Result<std::vector<LayerKeys>>& known) {
    std::string names;
    if (known) {
        for (const LayerKeys& keys : known.value()) names += (names.empty() ? "" : ", ") + std::to_string(keys.layer);
    }
    return unsupported("layer " + std::to_string(layer) + " has no keys of its own among those that are paged" +
                       (names.empty() ? "" : "; those that have: " + names));
}

}  // namespace

void LayerKeys::take_dimensions(std::span<float> head, std::span<float> out) const {
    assert(head.size() == head_size && out.size() == dimensions.size());
    for (std::size_t begin = 0; mixed_block != 0 && begin < head.size(); begin += mixed_block) {
        unmix(head.subspan(begin, mixed_block));
    }
    std::transform(dimensions.begin(), dimensions.end(), out.begin(), [head](std::uint16_t i) { return head[i]; });
}

std::vector<float> LayerKeys::compared(std::span<float> heads) const {
    const std::size_t n_dims = dimensions.size();
    std::vector<float> out(heads.size() / head_size * n_dims);
    for (std::size_t i = 0; i * head_size < heads.size(); ++i) {
        take_dimensions(heads.subspan(i * head_size, head_size), std::span(out).subspan(i * n_dims, n_dims));
    }
    return out;
}

std::vector<float> LayerKeys::to_floats(std::span<const std::uint8_t> rows) const {
    const std::size_t row_size = n_heads_kv * head_size;
    std::vector<float> floats(rows.size() / row_bytes * row_size);
    for (std::size_t i = 0; i * row_bytes < rows.size(); ++i) {
        const std::uint8_t* row = rows.data() + i * row_bytes;
        float* out = floats.data() + i * row_size;
        if (type == GGML_TYPE_F32) {
            std::memcpy(out, row, row_size * sizeof(float));
        } else {
            const auto n = static_cast<std::int64_t>(row_size);
            ggml_get_type_traits(static_cast<ggml_type>(type))->to_float(row, out, n);
        }
    }
    return floats;
}

bool LayerKeys::is_like(const LayerKeys& other) const {
    return layer == other.layer && type == other.type && row_bytes == other.row_bytes &&
           bytes_before == other.bytes_before && n_heads == other.n_heads && n_heads_kv == other.n_heads_kv &&
           head_size == other.head_size && mixed_block == other.mixed_block && dimensions == other.dimensions;
}

const ggml_tensor* storage_of(const ggml_tensor* tensor) {
    for (;;) {
        if (tensor->view_src != nullptr) {
            tensor = tensor->view_src;
        } else if (tensor->op == GGML_OP_CPY) {  // F32 is converted before attention
            tensor = tensor->src[0];
        } else {
            return tensor;
        }
    }
}

Result<std::vector<LayerKeys>> all_layer_keys(llama_context& context, llama_kv_cache& cache) {
    return in_graph_of_one_token(context, [&](ggml_cgraph* graph) -> Result<std::vector<LayerKeys>> {
        std::vector<std::int32_t> layers = layers_of(cache);
        std::sort(layers.begin(), layers.end());
        std::vector<LayerKeys> all;
        for (const std::int32_t layer : layers) {
            if (Result<LayerKeys> keys = keys_in(graph, cache, layer)) all.push_back(std::move(keys).value());
        }
        return all;
    });
}

Result<LayerKeys> find_layer_keys(llama_context& context, llama_kv_cache& cache, std::optional<std::int32_t> layer) {
    std::vector<std::int32_t> candidates = layers_of(cache);
    if (layer) {
        if (std::find(candidates.begin(), candidates.end(), *layer) == candidates.end()) {
            return no_such_layer(*layer, all_layer_keys(context, cache));
        }
        candidates = {*layer};
    }
    return in_graph_of_one_token(context, [&](ggml_cgraph* graph) {
        Result<LayerKeys> found = unsupported("no layer's keys are paged");
        // Heads for drafting may have layers of their own at the end, which are in no usual graph.
        for (auto id = candidates.rbegin(); id != candidates.rend() && !found; ++id) found = keys_in(graph, cache, *id);
        return found;
    });
}

}  // namespace luce::llama
