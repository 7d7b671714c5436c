// PromptScorer: prefill's PromptScorer by a small model (DraftScorer), which reads a prompt before the target does. Its
// memory may be given back at any time and is taken again when a prompt comes. One thread only.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llama/scoring/draft_scorer.h"
#include "prefill/prompt_scorer.h"

namespace luce::llama {

class PromptScorer final : public prefill::PromptScorer {
public:
    using Load = std::function<Result<std::unique_ptr<DraftScorer>>(const std::string& path)>;
    explicit PromptScorer(Load load) : load_(std::move(load)) {}

    // In place of another one. Errors: start_failed, bad_args, unsupported; the other one stays then.
    Result<void> open(const std::string& path);

    // Gives the model's memory back; what was read of texts is kept.
    void free();

    bool is_there() const override { return !path_.empty(); }
    ScorerUsage usage() const { return scorer_ ? scorer_->usage() : ScorerUsage{}; }
    std::uint64_t n_read() const { return scorer_ ? scorer_->n_computed() : 0; }  // tokens

    // Errors: those of prefill's.
    Result<bool> read(std::span<const Token> text) override;
    Result<std::vector<float>> scores(std::span<const Token> text) override;

private:
    Result<void> load();

    Load load_;
    std::string path_;                     // empty: none
    std::unique_ptr<DraftScorer> scorer_;  // null: its file could not be read again
    bool is_loaded_ = false;
};

}  // namespace luce::llama
