#include "llama/query_scorer.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <ggml.h>
#include <llama.h>

#include "llama-kv-cache.h"
#include "llama/memory_parts.h"

namespace luce::llama {
namespace {

constexpr std::size_t kKeys = memory::kPageSize;

struct Found {
    LayerKeys keys;
    const llama_kv_cells* cells = nullptr;
};

Error unsupported(const ContextOwner& owner, const std::string& why) {
    return {ErrorCode::unsupported, "pages of architecture " + owner.architecture() + " cannot be scored: " + why};
}

Result<Found> find(const ContextOwner& owner, std::int32_t n_lanes, std::optional<std::int32_t> layer) {
    const MemoryParts parts = memory_parts(owner.context(), owner.architecture(), n_lanes);
    if (parts.refusal) return unsupported(owner, *parts.refusal);
    if (parts.paged == nullptr) return unsupported(owner, "it has no attention over the whole text");
    const Result<LayerKeys> keys = find_layer_keys(*owner.context(), *parts.paged, layer);
    if (!keys) return unsupported(owner, keys.error().text);
    return Found{keys.value(), &parts.paged->get_cells(0)};
}

void to_floats(ggml_type type, std::span<const std::uint8_t> row, std::span<float> floats) {
    if (type == GGML_TYPE_F32) {
        std::memcpy(floats.data(), row.data(), row.size());
    } else {
        ggml_get_type_traits(type)->to_float(row.data(), floats.data(), static_cast<std::int64_t>(floats.size()));
    }
}

// Of each head's dimensions those that are compared. Leaves `heads` in pieces.
std::vector<float> compared(const LayerKeys& keys, std::span<float> heads) {
    const std::size_t n_dims = keys.dimensions.size();
    std::vector<float> out(heads.size() / keys.head_size * n_dims);
    for (std::size_t i = 0; i * keys.head_size < heads.size(); ++i) {
        keys.take_dimensions(heads.subspan(i * keys.head_size, keys.head_size),
                             std::span(out).subspan(i * n_dims, n_dims));
    }
    return out;
}

}  // namespace

Result<std::unique_ptr<QueryScorer>> QueryScorer::create(const ContextOwner& owner, std::int32_t n_lanes,
                                                         std::int32_t n_threads, std::optional<std::int32_t> layer) {
    Result<Found> found = find(owner, n_lanes, layer);
    if (!found) return found.error();
    LayerKeys& keys = found.value().keys;
    const KeyShape shape{keys.n_heads, keys.n_heads_kv, keys.dimensions.size(), keys.head_size};
    Result<std::unique_ptr<KeyIndex>> index = KeyIndex::create(shape, n_threads);
    if (!index) return unsupported(owner, index.error().text);
    std::unique_ptr<QueryScorer> scorer(new QueryScorer(owner, n_lanes, std::move(keys), std::move(index).value()));
    scorer->probe_.bind(scorer->keys_, *found.value().cells);
    return scorer;
}

QueryScorer::QueryScorer(const ContextOwner& owner, std::int32_t n_lanes, LayerKeys keys,
                         std::unique_ptr<KeyIndex> index)
    : owner_(owner), n_lanes_(n_lanes), keys_(std::move(keys)), probe_(n_lanes), index_(std::move(index)) {}

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
    assert(rows.size() >= kKeys * (keys_.bytes_before + keys_.row_bytes));
    const std::size_t row_size = keys_.n_heads_kv * keys_.head_size;
    std::vector<float> heads(kKeys * row_size);
    for (std::size_t i = 0; i < kKeys; ++i) {
        to_floats(static_cast<ggml_type>(keys_.type),
                  rows.subspan(kKeys * keys_.bytes_before + i * keys_.row_bytes, keys_.row_bytes),
                  std::span(heads).subspan(i * row_size, row_size));
    }
    return index_->encode(compared(keys_, heads));
}

bool QueryScorer::begin_scores(LaneId lane, std::span<const Token> /*text*/, std::vector<memory::PageKeys> pages) {
    QueryProbe::Queries noted = probe_.queries(lane);
    probe_.drop_queries(lane);
    if (noted.positions.empty()) return false;
    assert(!under_way_.contains(lane));
    const auto find = [this, queries = compared(keys_, noted.values), keys = std::move(pages)] {
        const std::lock_guard lock(index_in_use_);
        return index_->scores(queries, keys);
    };
    try {
        under_way_[lane] = std::async(std::launch::async, find);
    } catch (const std::system_error&) {
        under_way_[lane] = std::async(std::launch::deferred, find);  // no thread to be had: when it is asked for
    }
    return true;
}

std::vector<float> QueryScorer::end_scores(LaneId lane) {
    const auto found = under_way_.find(lane);
    assert(found != under_way_.end());
    std::future<std::vector<float>> scores = std::move(found->second);
    under_way_.erase(found);
    return scores.get();
}

void QueryScorer::forget(LaneId lane) {
    probe_.forget(lane);
    under_way_.erase(lane);
}

}  // namespace luce::llama
