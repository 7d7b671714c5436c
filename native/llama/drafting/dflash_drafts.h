// DflashDrafts: a DFlash drafter (block diffusion that reads the target's hidden features) as a source of drafts, also
// with what newer ones have behind their block (DSpark, DFlash2), and
// the memory that it keeps of each lane's text: K and V of the target's features, position for position.
//
// Source: "DFlash: Block Diffusion for Flash Speculative Decoding" (Chen et al., 2026); the graph is llama.cpp's.
// Features are collected behind each computation of the target and injected together, when a draft or a page needs
// them; on a device also while the target computes, so that what a page still waits for is little. What is skipped has
// rows of zeros: they say nothing, but pages are whole and positions have no gaps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "llama/drafting/draft_context.h"
#include "llama/drafting/draft_memory.h"
#include "llama/drafting/feature_rows.h"
#include "llama/gguf_check/draft_fit.h"
#include "llama/kv_cache/kv_device.h"
#include "speculation/draft_source.h"

struct common_batch;

namespace luce::llama {

class DflashDrafts final : public speculation::DraftSource, public DraftMemory {
public:
    // Takes options.n_most down to what the drafter's block holds. The target must outlive it. Errors: start_failed
    // (with the reason why the drafter does not fit the target), bad_args.
    static Result<std::unique_ptr<DflashDrafts>> load(const DraftModelOptions& options, const Model& target);
    ~DflashDrafts() override;

    const speculation::SourceTraits& traits() const override { return traits_; }
    Result<std::int32_t> prepare(std::span<const speculation::DraftAsk> asks) override;
    Result<void> draft(std::span<const speculation::DraftAsk> asks, std::vector<speculation::Draft>& drafts) override;
    void follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                speculation::BatchRows rows) override;
    void skip(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
              speculation::BatchRows rows) override;
    bool can_skip() const override { return !device_->traits().has_state(); }
    void leave_out(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new) override;
    void overlapped() override;
    void begin(LaneId lane, std::span<const Token> text, std::int32_t n_computed) override;
    void forget(LaneId lane) override;

    LlamaKvDevice& device() override { return *device_; }
    const ContextOwner& owner() const override { return *model_; }
    Result<void> catch_up(LaneId lane) override;
    const std::string& identity() const override { return model_->identity(); }
    MemoryRefusals& refusals() override { return model_->refusals(); }
    using DraftMemory::unload;
    void unload(bool keeps_weights) override;
    Result<void> reload() override;

private:
    // Features of positions that the drafter has not seen yet: one row each, of all its layers side by side. Behind
    // them tokens that it skips.
    struct Pending {
        explicit Pending(std::size_t n_features) : rows(n_features) {}

        Position begin = 0;
        FeatureRows rows;
        Tokens skipped;
    };
    struct Portion {  // the first n of a lane's
        LaneId lane{};
        std::size_t n = 0;
    };

    explicit DflashDrafts(const Model& target);
    void open();
    // The features of rows[first] up to before rows[end].
    void collect(Pending& pending, speculation::BatchRows rows, std::int32_t first, std::int32_t end);
    Result<void> inject(std::span<const Portion> portions);
    void take_off(const Portion& portion);
    void drop_pending(LaneId lane);
    Result<void> leave_out_skipped(LaneId lane);
    void warn_of_loss(const Result<void>& injected);
    Result<void> run(const char* what, const CallShape& shape);
    CallShape features_shape() const;
    CallShape block_shape(std::size_t n_blocks) const;
    std::size_t n_features() const;  // of a position
    std::size_t n_pending(LaneId lane) const;
    std::int32_t n_places(const speculation::DraftAsk& ask) const;
    speculation::Draft read_draft(const speculation::DraftAsk& ask, std::int32_t row) const;
    speculation::Draft read_selected(const speculation::DraftAsk& ask, std::int32_t row) const;

    const Model& target_;
    std::unique_ptr<DraftContext> model_;
    std::unique_ptr<LlamaKvDevice> device_;
    speculation::SourceTraits traits_;
    DflashHead head_ = DflashHead::none;
    std::int32_t first_place_ = 1;      // of a block, that is drafted: before it stands the text's last token
    std::int32_t n_block_ = 0;          // places of the block from there on, or fewer if that many are wanted
    std::vector<std::int32_t> layers_;  // of the target, whose inputs are the features
    std::int32_t n_embd_ = 0;           // of one layer
    Token mask_ = 0;
    std::unique_ptr<common_batch> batch_;
    std::vector<Pending> pending_;  // of each lane
    bool has_warned_ = false;
};

}  // namespace luce::llama
