// CommonDrafts: the drafts that run token by token, as a source of drafts and as a memory beside the target's: a plain
// draft model, MTP heads, Gemma 4's assistant, EAGLE-3. (DFlash drafts a block at once: dflash_drafts.h.)
//
// All are one loop. A draft reads pairs: a token of the text, and what the target made of the token before it (its last
// hidden state, or EAGLE-3's fused features; nothing for a plain model). Reading the text's last token gives the first
// drafted one; that, with the draft's own hidden state, the next. What the text becomes is read again with the target's
// states once it is known. Pairs wait until a draft or a page needs them and are then read together, so that a lane
// that does not speculate pays for copying them and little else.
//
// The graphs are llama.cpp's; what its common/speculative (b11549) does with them is done here. There every token has
// to be read at once, also for lanes that never draft; the state that is carried from token to token can be had only of
// EAGLE-3 on recurrent targets, where pages and checkpoints need it of all; and a draft's probabilities only by way of
// a sampler's table of the whole vocabulary. tests/llama/common_drafts_test.cpp compares the drafts of both. Sources:
// "Better & Faster Large Language Models via Multi-token Prediction" (Gloeckle et al., 2024), "EAGLE-3" (Li et al.,
// 2025).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "llama/drafting/draft_context.h"
#include "llama/drafting/draft_memory.h"
#include "llama/kv_cache/kv_device.h"
#include "speculation/draft_source.h"

struct common_batch;

namespace luce::llama {

class CommonDrafts final : public speculation::DraftSource, public DraftMemory {
public:
    // As DraftContext::load(). The target must outlive it. Errors: start_failed (with the reason why the draft does not
    // fit the target), bad_args.
    static Result<std::unique_ptr<CommonDrafts>> load(const DraftModelOptions& options, const Model& target);
    ~CommonDrafts() override;

    const speculation::SourceTraits& traits() const override { return traits_; }
    Result<void> draft(std::span<const speculation::DraftAsk> asks, std::vector<speculation::Draft>& drafts) override;
    void follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                speculation::BatchRows rows) override;
    void begin(LaneId lane, std::span<const Token> text, std::int32_t n_computed) override;
    void forget(LaneId lane) override;

    DraftKind kind() const { return model_->kind(); }
    llama_context* context() const { return model_->context(); }

    // Gemma 4's assistant reads the target's cells; all others have a row of their own for each position.
    bool has_cells() const override { return device_ != nullptr; }
    LlamaKvDevice& device() override { return *device_; }
    const ContextOwner& owner() const override { return *model_; }
    Result<void> catch_up(LaneId lane) override;
    const std::string& identity() const override { return model_->identity(); }
    MemoryRefusals& refusals() override { return model_->refusals(); }
    using DraftMemory::unload;
    void unload(bool keeps_weights) override;
    Result<void> reload() override;

    // What the lane carries over from its last token to the next one, beside its cells: without it the first pair after
    // a restore would be a guess. Catches up first; of state_bytes() always. It is put back before begin() or after it.
    // Errors: as catch_up(); internal (not such a state).
    std::size_t state_bytes() const override;
    Result<std::vector<std::uint8_t>> save_state(LaneId lane) override;
    Result<void> load_state(LaneId lane, std::span<const std::uint8_t> state) override;

private:
    // Tokens that the target has computed and the draft has not read.
    struct Lane {
        Position begin = 0;
        Tokens tokens;
        std::vector<float> rows;        // what the target made of each
        std::vector<float> inputs;      // what of that goes with the token after it, while they are being read
        std::vector<float> carry;       // what goes with the token at `begin`; empty: nothing, or not known
        std::vector<float> next_carry;  // and with the one after these tokens, while they are being read
        memory::Bytes state;            // what is not in cells, as it was before drafting
        bool is_lost = false;           // it has missed some of the text

        Position end() const { return begin + static_cast<Position>(tokens.size()); }
    };

    // A draft on its way.
    struct Chain {
        std::size_t ask = 0;
        std::int32_t row = 0;  // in the batch: what was read last
    };

    explicit CommonDrafts(const Model& target);
    void open();
    Lane& lane_of(LaneId lane) { return lanes_[static_cast<std::size_t>(lane)]; }
    void lose(Lane& lane, const std::string& why);
    void copy_rows(speculation::BatchRows rows, std::size_t n, std::span<float> out) const;
    Result<void> prepare_lane(Lane& lane);
    Result<void> encode(Lane& lane);
    Result<void> queue(LaneId id, Lane& lane, bool wants_output);
    void finish(Lane& lane);
    Result<void> take_back(LaneId id);
    Result<void> read(std::span<const LaneId> ids);
    std::int32_t add(Token token, Position position, LaneId lane, const float* input, bool wants_output);
    Result<void> run();
    bool can_draft(const speculation::DraftAsk& ask);
    Result<std::vector<Chain>> seed(std::span<const speculation::DraftAsk> asks);
    void extend(std::span<const speculation::DraftAsk> asks, std::vector<Chain> chains,
                std::span<speculation::Draft> drafts);
    bool take_token(const Chain& chain, speculation::Draft& draft) const;

    const Model& target_;
    std::unique_ptr<DraftContext> model_;
    std::unique_ptr<LlamaKvDevice> device_;
    speculation::SourceTraits traits_;
    std::int32_t n_batch_ = 0;
    std::size_t n_row_ = 0;       // floats of what the target makes of a token
    std::size_t n_input_ = 0;     // and of what goes with the next one
    bool has_recurrent_ = false;  // a state that drafted tokens cannot be taken out of: it is kept before and put back
    std::unique_ptr<common_batch> batch_;
    std::vector<Lane> lanes_;
    bool has_warned_ = false;
};

}  // namespace luce::llama
