#include "speculation/ngram/answer_memory.h"

#include <algorithm>

namespace luce::speculation {

AnswerMemory::AnswerMemory(std::size_t n_short, std::size_t n_long)
    : n_short_(n_short), n_long_(n_long), shorter_(n_short), longer_(n_long) {}

void AnswerMemory::add(std::span<const Token> text, std::int32_t n_prompt) {
    const auto n_before = std::min(static_cast<std::size_t>(std::max(n_prompt, 0)), text.size());
    if (n_before == text.size()) return;
    std::span<const Token> answer = text.subspan(n_before - std::min(n_before, n_long_));
    answer = answer.last(std::min(answer.size(), kMost / 2));
    // Each token is moved and made known twice at the most.
    if (text_.size() + answer.size() + 1 > kMost) {
        text_.erase(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(text_.size() / 2));
        shorter_ = NgramIndex(n_short_);
        longer_ = NgramIndex(n_long_);
    }
    text_.insert(text_.end(), answer.begin(), answer.end());
    text_.push_back(kEnd);
    shorter_.extend(text_, text_.size());
    longer_.extend(text_, text_.size());
}

}  // namespace luce::speculation
