#include "llama/scoring/prompt_scorer.h"

#include <utility>

#include "memory/manager/kv_device.h"

namespace luce::llama {
namespace {

constexpr LaneId kLane{0};  // one text at a time

}  // namespace

Result<void> PromptScorer::open(const std::string& path) {
    if (is_there() && path == path_) return {};
    Result<std::unique_ptr<DraftScorer>> loaded = load_(path);
    if (!loaded) return loaded.error();
    scorer_ = std::move(loaded).value();
    path_ = path;
    is_loaded_ = true;
    return {};
}

void PromptScorer::free() {
    if (scorer_ && std::exchange(is_loaded_, false)) scorer_->unload();
}

// A file that has changed is another model, which knows nothing of what this one has read.
Result<void> PromptScorer::load() {
    if (is_loaded_) return {};
    if (scorer_ != nullptr && !scorer_->reload()) scorer_.reset();
    if (scorer_ == nullptr) {
        Result<std::unique_ptr<DraftScorer>> loaded = load_(path_);
        if (!loaded) return loaded.error();
        scorer_ = std::move(loaded).value();
    }
    is_loaded_ = true;
    return {};
}

Result<bool> PromptScorer::read(std::span<const Token> text) {
    if (const Result<void> loaded = load(); !loaded) return loaded.error();
    // One call: lanes that answer wait for it in each of their steps.
    const Result<bool> has_read = scorer_->read_ahead(kLane, text, static_cast<std::size_t>(scorer_->n_call()));
    if (!has_read) return has_read;
    return !has_read.value();
}

Result<std::vector<float>> PromptScorer::scores(std::span<const Token> text) {
    std::vector<memory::PageKeys> pages(text.size() / memory::kPageSize);
    if (pages.empty()) return std::vector<float>();
    const bool has_begun = scorer_->begin_scores(kLane, text, std::move(pages));
    std::vector<float> scores = has_begun ? scorer_->end_scores(kLane) : std::vector<float>();
    scorer_->forget(kLane);
    if (!scores.empty()) return scores;
    return Error{ErrorCode::internal, "the scorer says nothing of the prompt"};
}

}  // namespace luce::llama
