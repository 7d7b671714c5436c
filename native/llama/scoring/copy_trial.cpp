#include "llama/scoring/copy_trial.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include <ggml-backend.h>

#include "llama-kv-cache.h"
#include "llama/scoring/query_probe.h"

namespace luce::llama {
namespace {

constexpr LaneId kTrialLane{0};
constexpr std::size_t kFrom = 32;    // where in the text the ids stand that come again
constexpr std::size_t kSettled = 4;  // ids after which a repeat is one

static_assert(CopyTrial::kRepeat <= kNotedQueries);
static_assert(kFrom + CopyTrial::kRepeat < CopyTrial::kText);

Tokens some_ids(std::int32_t n_vocab) {
    std::minstd_rand random(1);
    Tokens ids(CopyTrial::kText);
    for (Token& id : ids) id = static_cast<Token>(random() % static_cast<std::uint32_t>(n_vocab));
    return ids;
}

// The cells of the text's positions, in their order.
Result<std::vector<std::size_t>> cells_of(const llama_kv_cells& cells) {
    std::vector<std::size_t> found(CopyTrial::kText, cells.size());
    for (std::uint32_t cell = 0; cell < cells.size(); ++cell) {
        if (!cells.seq_has(cell, 0)) continue;
        const auto position = static_cast<std::size_t>(cells.pos_get(cell));
        if (position < found.size()) found[position] = cell;
    }
    if (std::find(found.begin(), found.end(), cells.size()) == found.end()) return found;
    return Error{ErrorCode::internal, "not all of a text is in its cells"};
}

// Of the text, key by key, in each head by head.
std::vector<float> keys_at(const LayerKeys& layer, std::span<const std::size_t> cells) {
    std::vector<std::uint8_t> rows(cells.size() * layer.row_bytes);
    for (std::size_t i = 0; i < cells.size(); ++i) {
        ggml_backend_tensor_get(layer.storage, rows.data() + i * layer.row_bytes, cells[i] * layer.row_bytes,
                                layer.row_bytes);
    }
    std::vector<float> heads = layer.to_floats(rows);
    return layer.compared(heads);
}

// What part of its attention a query gives the right one of the keys, which are `stride` apart.
float attention_to(std::size_t right, std::span<const float> query, const float* keys, std::size_t stride,
                   float scale) {
    std::array<float, CopyTrial::kText> logits;
    for (std::size_t j = 0; j < logits.size(); ++j, keys += stride) {
        float product = 0;
        for (std::size_t d = 0; d < query.size(); ++d) product += query[d] * keys[d];
        logits[j] = product * scale;
    }
    const float most = *std::max_element(logits.begin(), logits.end());
    float sum = 0;
    for (const float logit : logits) sum += std::exp(logit - most);
    return std::exp(logits[right] - most) / sum;
}

// Of the layer's best head. What is no number loses every comparison.
float attention_to_right_keys(const LayerKeys& layer, std::span<const float> keys, std::span<const float> queries) {
    const std::size_t n_dims = layer.dimensions.size();
    const std::size_t stride = layer.n_heads_kv * n_dims;
    const std::size_t n_queries = queries.size() / (layer.n_heads * n_dims);
    float best = 0;
    for (std::size_t head = 0; head < layer.n_heads; ++head) {
        const float* of_head = keys.data() + head / (layer.n_heads / layer.n_heads_kv) * n_dims;
        float sum = 0;
        for (std::size_t i = kSettled; i < n_queries; ++i) {
            const auto query = queries.subspan((i * layer.n_heads + head) * n_dims, n_dims);
            sum += attention_to(kFrom + i + 1, query, of_head, stride, layer.scale);
        }
        const float mean = sum / static_cast<float>(CopyTrial::kRepeat - kSettled);
        best = mean > best ? mean : best;
    }
    return best;
}

}  // namespace

Result<std::vector<float>> CopyTrial::run(llama_context& context, llama_kv_cache& cache,
                                          std::span<const LayerKeys> layers, std::int32_t n_vocab,
                                          const Compute& compute) {
    const llama_kv_cells& cells = cache.get_cells(0);
    const Tokens ids = some_ids(n_vocab);
    if (Result<void> done = compute(0, ids); !done) return done.error();
    std::vector<QueryProbe> probes;
    for (const LayerKeys& layer : layers) {
        probes.emplace_back(1);
        probes.back().bind(layer, cells);
        probes.back().watch(kTrialLane, true);
    }
    {
        constexpr auto kBegin = static_cast<Position>(kText);
        const QueryProbe::Watch watch(probes, context, {{0, kTrialLane, kBegin}});
        if (Result<void> done = compute(kBegin, std::span(ids).subspan(kFrom, kRepeat)); !done) return done.error();
    }
    const Result<std::vector<std::size_t>> places = cells_of(cells);
    if (!places) return places.error();
    std::vector<float> found;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        QueryProbe::Queries noted = probes[i].queries(kTrialLane);
        found.push_back(
            attention_to_right_keys(layers[i], keys_at(layers[i], places.value()), layers[i].compared(noted.values)));
    }
    return found;
}

}  // namespace luce::llama
