// LlamaDecoder: the engine's Decoder on libllama. A lane is a sequence id. One thread only.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <llama.h>

#include "base/step_profile.h"
#include "engine/decoder.h"
#include "llama/decoding/contention_monitor.h"
#include "llama/decoding/tree_branches.h"
#include "llama/model/model.h"
#include "llama/scoring/query_probe.h"

namespace luce::llama {

class ExpertMover;
class LlamaKvDevice;

class LlamaDecoder final : public engine::Decoder {
public:
    // The model must outlive the decoder.
    LlamaDecoder(const Model& model, std::int32_t n_lanes);
    ~LlamaDecoder() override;
    LlamaDecoder(const LlamaDecoder&) = delete;
    LlamaDecoder& operator=(const LlamaDecoder&) = delete;

    // Queries of the lanes that it watches are noted from now on; none: of no lane. It must outlive the decoder or be
    // taken away before.
    void note_queries(QueryProbe* probe) { probe_ = probe; }

    // Whose cells its calls run over, for the profile of a step. It must outlive the decoder's last call.
    void note_kv_device(LlamaKvDevice* device) { kv_device_ = device; }

    // Of a mixture whose experts lie in a bank. It must outlive the decoder's last call.
    void note_experts(ExpertMover* mover) { experts_ = mover; }

    // A refusal went through ggml as an exception: its processor's backend has then let go of its work buffer and still
    // points to it, so the context must not be let go.
    bool is_torn() const { return is_torn_; }

    // The model has another pool than before.
    void note_pool() { limits_.n_pool = model_.info().n_pool; }

    const engine::DecoderLimits& limits() const override { return limits_; }
    Result<void> decode(std::span<const engine::Slice> slices, const std::function<void()>& overlapped = {}) override;
    Result<void> keep(LaneId lane, std::span<const std::int32_t> path) override;
    void wait() override;
    bool was_first() const override { return was_first_; }
    bool met_contention() override { return contention_.met_contention(); }
    std::optional<engine::ExpertReads> expert_reads(std::size_t first, std::size_t n) const override;
    void forget(LaneId lane) override;
    bool is_end_of_generation(Token token) const override;
    bool has_idle_work() const override;
    void use_idle_time() override;

    // Row `row` of the last decode call: n_vocab floats, valid until the next one; none if it wanted no logits.
    std::span<const float> logits(std::size_t row) const override;

    // Makes row 0 of "the last decode call" these logits, for both kinds of sampler; there are no other rows until the
    // next decode call. Computes nothing. Errors: internal (not n_vocab floats), out_of_memory.
    Result<void> recall(std::span<const float> logits) override;

    // The same row's number in libllama's batch.
    std::int32_t batch_index(std::size_t row) const { return rows_[row]; }

private:
    Result<void> decode_batch(const CallShape& shape);
    CallShape shape_of(std::span<const engine::Slice> slices, bool is_watched) const;
    void add(const engine::Slice& slice);
    void add_tree(const engine::Slice& slice);
    std::int32_t add_token(Token token, Position position, Position rope_shift);
    int decode_shifted() const;
    Result<void> compute(std::span<const engine::Slice> slices, const std::function<void()>& overlapped, Span& submit);
    Result<void> decode_rows(const engine::Slice& slice);
    void end_submit(std::size_t n_slices, Span& submit) const;
    std::vector<QueryProbe::Sequence> watched(std::span<const engine::Slice> slices) const;
    std::vector<std::int32_t> outputs() const;
    void keep_states_for(std::int32_t n_tokens_back);

    const Model& model_;
    engine::DecoderLimits limits_;
    TreeBranches branches_;
    QueryProbe* probe_ = nullptr;
    LlamaKvDevice* kv_device_ = nullptr;
    ExpertMover* experts_ = nullptr;
    llama_batch batch_;
    std::vector<Position> rope_shifts_;  // of the batch's tokens
    std::vector<std::int32_t> rows_;     // of logits -> index of their token in the batch; -1: none
    ContentionMonitor contention_;
    bool was_first_ = false;  // the last call: the first of its shape, or the first whose graph is kept
    bool is_torn_ = false;
};

}  // namespace luce::llama
