// QueryScorer: the memory's PageScorer on libllama: pages are compared by the keys that one late attention layer keeps
// of them, with that layer's queries of what a lane computes. Composes; the rules are in QueryProbe, LayerKeys and
// KeyIndex. One thread only; where another device computes it starts others for as long as finding scores takes, and on
// a CPU the threads that compute find them.
//
// Where a model rotates only some of a head's dimensions by position, the others alone are compared: what a text says
// does not depend on where it stands. Where it rotates all, they are compared as they lie in the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "llama/decoding/context_owner.h"
#include "llama/scoring/key_index.h"
#include "llama/scoring/layer_keys.h"
#include "llama/scoring/query_probe.h"
#include "llama/scoring/score_tasks.h"
#include "memory/residency/page_scorer.h"

namespace luce::llama {

class QueryScorer final : public memory::PageScorer {
public:
    // The layers that create() takes, ascending; at least one. No computation may be under way. Errors: as there.
    static Result<std::vector<std::int32_t>> layers(const ContextOwner& owner, std::int32_t n_lanes);

    // By the keys of this layer; unset: of the last one that has any. The owner must outlive it; no computation may be
    // under way. Errors: unsupported (why this model's pages cannot be scored).
    static Result<std::unique_ptr<QueryScorer>> create(const ContextOwner& owner, std::int32_t n_lanes,
                                                       std::int32_t n_threads,
                                                       std::optional<std::int32_t> layer = std::nullopt);

    // Before the model is unloaded, and after it has been loaded anew: keys of before stay good. Nothing is noted in
    // between, nor after an error. Errors: unsupported (it is not the model that it was).
    void unbind();
    Result<void> rebind();

    // What LlamaDecoder notes the queries with.
    QueryProbe& probe() { return probe_; }
    const LayerKeys& keys() const { return keys_; }

    std::size_t keys_bytes() const { return index_->keys_bytes(); }  // of one page

    bool needs_keys() const override { return true; }
    memory::PageKeys keys_of(std::span<const std::uint8_t> rows) override;
    void watch(LaneId lane, bool is_watched) override { probe_.watch(lane, is_watched); }
    void read(LaneId, std::span<const Token>) override {}
    bool begin_scores(LaneId lane, std::span<const Token> text, std::vector<memory::PageKeys> pages) override;
    std::vector<float> end_scores(LaneId lane) override { return tasks_.end(lane); }
    void forget(LaneId lane) override;

private:
    QueryScorer(const ContextOwner& owner, std::int32_t n_lanes, LayerKeys keys, std::unique_ptr<KeyIndex> index,
                bool beside);

    const ContextOwner& owner_;
    std::int32_t n_lanes_;
    LayerKeys keys_;
    QueryProbe probe_;
    std::unique_ptr<KeyIndex> index_;
    ScoreTasks tasks_;  // last: they use the index, and are waited for
};

}  // namespace luce::llama
