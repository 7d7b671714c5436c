// EmbeddingQueue: texts that wait for their vectors, and which of them are computed together: the oldest, as many as
// one call takes. Pure; does not know what computes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "engine/embedding/embedder.h"

namespace luce::engine {

struct EmbeddingRequest {
    std::int32_t id = 0;
    Tokens tokens;
};

class EmbeddingQueue {
public:
    EmbeddingQueue(EmbedderLimits limits, std::size_t n_most) : limits_(limits), n_most_(n_most) {}

    // Errors: duplicate_id, queue_full, empty_prompt, prompt_too_long, token_out_of_range.
    Result<void> add(EmbeddingRequest request);

    // Whether it was there.
    bool remove(std::int32_t id);

    // Taken out; empty if nothing waits.
    std::vector<EmbeddingRequest> next_batch();

    bool empty() const { return waiting_.empty(); }
    std::size_t size() const { return waiting_.size(); }
    std::int32_t first_id() const { return waiting_.front().id; }

private:
    EmbedderLimits limits_;
    std::size_t n_most_;
    std::deque<EmbeddingRequest> waiting_;
};

}  // namespace luce::engine
