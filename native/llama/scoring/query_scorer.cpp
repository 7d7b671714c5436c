#include "llama/scoring/query_scorer.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include <ggml-backend.h>
#include <llama.h>

#include "llama-kv-cache.h"
#include "llama/kv_cache/memory_parts.h"

namespace luce::llama {
namespace {

struct Found {
    LayerKeys keys;
    const llama_kv_cells* cells = nullptr;
};

Error unsupported(const ContextOwner& owner, const std::string& why) {
    return {ErrorCode::unsupported, "pages of architecture " + owner.architecture() + " cannot be scored: " + why};
}

// The cache whose keys are compared.
Result<llama_kv_cache*> paged_cache(const ContextOwner& owner, std::int32_t n_lanes) {
    const MemoryParts parts = memory_parts(owner.context(), owner.architecture(), n_lanes);
    if (parts.refusal) return unsupported(owner, *parts.refusal);
    if (parts.paged == nullptr) return unsupported(owner, "it has no attention over the whole text");
    return parts.paged;
}

Result<Found> find(const ContextOwner& owner, std::int32_t n_lanes, std::optional<std::int32_t> layer) {
    const Result<llama_kv_cache*> paged = paged_cache(owner, n_lanes);
    if (!paged) return paged.error();
    const Result<LayerKeys> keys = find_layer_keys(*owner.context(), *paged.value(), layer);
    if (!keys) return unsupported(owner, keys.error().text);
    return Found{keys.value(), &paged.value()->get_cells(0)};
}

}  // namespace

Result<std::vector<std::int32_t>> QueryScorer::layers(const ContextOwner& owner, std::int32_t n_lanes) {
    const Result<llama_kv_cache*> paged = paged_cache(owner, n_lanes);
    if (!paged) return paged.error();
    const Result<std::vector<LayerKeys>> keys = all_layer_keys(*owner.context(), *paged.value());
    if (!keys) return unsupported(owner, keys.error().text);
    if (keys.value().empty()) return find(owner, n_lanes, std::nullopt).error();  // which says why
    std::vector<std::int32_t> layers;
    for (const LayerKeys& of_layer : keys.value()) layers.push_back(of_layer.layer);
    return layers;
}

Result<std::unique_ptr<QueryScorer>> QueryScorer::create(const ContextOwner& owner, std::int32_t n_lanes,
                                                         std::int32_t n_threads, std::optional<std::int32_t> layer) {
    Result<Found> found = find(owner, n_lanes, layer);
    if (!found) return found.error();
    LayerKeys& keys = found.value().keys;
    const KeyShape shape{keys.n_heads, keys.n_heads_kv, keys.dimensions.size(), keys.head_size};
    // The processor is idle beside another device's computations, not beside its own.
    const bool beside = !ggml_backend_buffer_is_host(keys.storage->buffer);
    Result<std::unique_ptr<KeyIndex>> index = KeyIndex::create(shape, n_threads);
    if (!index) return unsupported(owner, index.error().text);
    std::unique_ptr<QueryScorer> scorer(
        new QueryScorer(owner, n_lanes, std::move(keys), std::move(index).value(), beside));
    scorer->probe_.bind(scorer->keys_, *found.value().cells);
    return scorer;
}

QueryScorer::QueryScorer(const ContextOwner& owner, std::int32_t n_lanes, LayerKeys keys,
                         std::unique_ptr<KeyIndex> index, bool beside)
    : owner_(owner),
      n_lanes_(n_lanes),
      keys_(std::move(keys)),
      probe_(n_lanes),
      index_(std::move(index)),
      tasks_(beside) {}

void QueryScorer::unbind() {
    probe_.unbind();
    keys_.storage = nullptr;
}

Result<void> QueryScorer::rebind() {
    unbind();
    const Result<Found> found = find(owner_, n_lanes_, keys_.layer);
    if (!found) return found.error();
    if (!found.value().keys.is_like(keys_)) {
        return unsupported(owner_, "its keys lie otherwise than before it was unloaded");
    }
    keys_ = found.value().keys;
    probe_.bind(keys_, *found.value().cells);
    return {};
}

memory::PageKeys QueryScorer::keys_of(std::span<const std::uint8_t> rows) {
    assert(rows.size() >= memory::kPageSize * (keys_.bytes_before + keys_.row_bytes));
    std::vector<float> heads =
        keys_.to_floats(rows.subspan(memory::kPageSize * keys_.bytes_before, memory::kPageSize * keys_.row_bytes));
    return index_->encode(keys_.compared(heads));
}

bool QueryScorer::begin_scores(LaneId lane, std::span<const Token> /*text*/, std::vector<memory::PageKeys> pages) {
    QueryProbe::Queries noted = probe_.queries(lane);
    probe_.drop_queries(lane);
    if (noted.positions.empty()) return false;
    tasks_.begin(lane, [this, queries = keys_.compared(noted.values), keys = std::move(pages)] {
        return index_->scores(queries, keys);
    });
    return true;
}

void QueryScorer::forget(LaneId lane) {
    probe_.forget(lane);
    tasks_.forget(lane);
}

}  // namespace luce::llama
