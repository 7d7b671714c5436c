#include "engine/embedding/embedding_queue.h"

#include <algorithm>
#include <string>
#include <utility>

namespace luce::engine {

Result<void> EmbeddingQueue::add(EmbeddingRequest request) {
    const auto n_tokens = static_cast<std::int64_t>(request.tokens.size());
    if (std::ranges::find(waiting_, request.id, &EmbeddingRequest::id) != waiting_.end()) {
        return Error{ErrorCode::duplicate_id, "request " + std::to_string(request.id) + " is still waiting"};
    }
    if (waiting_.size() >= n_most_) return Error{ErrorCode::queue_full, "too many texts wait for their vectors"};
    if (request.tokens.empty()) return Error{ErrorCode::empty_prompt, "a text needs at least one token"};
    if (n_tokens > limits_.n_text) {
        return Error{ErrorCode::prompt_too_long, "the text has " + std::to_string(n_tokens) +
                                                     " tokens, but the model reads " + std::to_string(limits_.n_text)};
    }
    for (const Token token : request.tokens) {
        if (token >= 0 && token < limits_.n_vocab) continue;
        return Error{ErrorCode::token_out_of_range, "token " + std::to_string(token) +
                                                        " is outside the vocabulary of " +
                                                        std::to_string(limits_.n_vocab) + " tokens"};
    }
    waiting_.push_back(std::move(request));
    return {};
}

bool EmbeddingQueue::remove(std::int32_t id) {
    return std::erase_if(waiting_, [id](const EmbeddingRequest& request) { return request.id == id; }) > 0;
}

std::vector<EmbeddingRequest> EmbeddingQueue::next_batch() {
    std::vector<EmbeddingRequest> batch;
    std::int64_t n_tokens = 0;
    while (!waiting_.empty() && batch.size() < static_cast<std::size_t>(limits_.n_texts)) {
        n_tokens += static_cast<std::int64_t>(waiting_.front().tokens.size());
        if (!batch.empty() && n_tokens > limits_.n_batch) break;  // a long text is computed alone
        batch.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
    }
    return batch;
}

}  // namespace luce::engine
