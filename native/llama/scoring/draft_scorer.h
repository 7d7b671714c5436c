// DraftScorer: the memory's PageScorer by a small model that reads the lanes' texts beside the target: pages are
// compared by the keys that one of its attention layers made of them, with that layer's queries of the text's last
// tokens. Composes; the rules are in ScorerText, ReadText, ScorerModel, QueryProbe and KeyIndex. One thread only; it
// starts others for as long as finding scores takes.
//
// What has been read of a text is kept as keys in few bits, in the host's memory, so that a choice computes new tokens
// only, and the next turn of a conversation goes on from what the last one has read. Long stretches are read along with
// the target's own computation, a piece at a time, so that none keeps other lanes waiting for long; what is left waits
// for the choice, so that a text that is written is read in few large calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "llama/kv_cache/kv_cells.h"
#include "llama/scoring/key_index.h"
#include "llama/scoring/layer_keys.h"
#include "llama/scoring/query_probe.h"
#include "llama/scoring/read_text.h"
#include "llama/scoring/score_tasks.h"
#include "llama/scoring/scorer_model.h"
#include "llama/scoring/scorer_options.h"
#include "memory/residency/page_scorer.h"

namespace luce::llama {

// In bytes.
struct ScorerUsage {
    std::size_t weights = 0;
    std::size_t cells = 0;
    std::size_t keys = 0;  // of all texts, in the host
};

class DraftScorer final : public memory::PageScorer {
public:
    // The target must outlive it. Errors: start_failed, bad_args, unsupported (why it cannot score pages).
    static Result<std::unique_ptr<DraftScorer>> load(const ScorerOptions& options, const Model& target);

    // Give the model's memory back, and take it again once the target is there again: keys of before stay good. Errors:
    // start_failed, unsupported.
    void unload();
    Result<void> reload();

    MemoryRefusals& refusals() { return model_->refusals(); }
    ScorerUsage usage() const;
    const LayerKeys& keys() const { return keys_; }
    std::uint64_t n_computed() const { return n_computed_; }  // tokens, since the start

    // A piece of what is not read yet of the text, of at most so many tokens; false: only its last tokens are left.
    // REQUIRES: it is loaded. Errors: internal, no_room, out_of_memory.
    Result<bool> read_ahead(LaneId lane, std::span<const Token> text, std::size_t n_most);
    std::int32_t n_call() const { return options_.n_call; }

    bool needs_keys() const override { return false; }
    memory::PageKeys keys_of(std::span<const std::uint8_t>) override { return nullptr; }
    void watch(LaneId, bool) override {}
    void read(LaneId lane, std::span<const Token> text) override;
    bool begin_scores(LaneId lane, std::span<const Token> text, std::vector<memory::PageKeys> pages) override;
    std::vector<float> end_scores(LaneId lane) override { return tasks_.end(lane); }
    void forget(LaneId lane) override;

private:
    using Texts = std::list<ReadText>;

    DraftScorer(const ScorerOptions& options, std::unique_ptr<ScorerModel> model);
    Result<void> bind();
    ReadText& text_of(LaneId lane, std::span<const Token> text);
    void give_sequence(ReadText& text);
    void drop(Texts::iterator text);
    void drop_unused();
    Result<void> read_on(ReadText& text, std::size_t end);
    Result<std::vector<float>> keys_at(std::int32_t sequence, Position begin, std::size_t n) const;
    void warn(const Error& error);

    ScorerOptions options_;
    std::unique_ptr<ScorerModel> model_;
    LayerKeys keys_;
    KvCells cells_;
    QueryProbe probe_;
    std::unique_ptr<KeyIndex> index_;
    Texts texts_;  // of lanes, and of some that have none
    std::map<LaneId, Texts::iterator> of_lanes_;
    std::uint64_t n_uses_ = 0;
    std::uint64_t n_computed_ = 0;
    bool has_warned_ = false;
    ScoreTasks tasks_;  // last: they use the index, and are waited for
};

}  // namespace luce::llama
