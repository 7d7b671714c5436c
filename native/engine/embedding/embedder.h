// Embedder: the border with a model that gives vectors in place of tokens. Each text has one vector: what it means, or,
// of a reranker, how well its two parts fit. Implemented over libllama, and by fakes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/token.h"

namespace luce::engine {

struct EmbedderLimits {
    std::int32_t n_text = 0;   // tokens of one text, at the most
    std::int32_t n_batch = 0;  // tokens of one call, where it has several texts
    std::int32_t n_texts = 1;  // texts of one call
    std::int32_t n_vocab = 0;
};

using Vector = std::vector<float>;

class Embedder {
public:
    virtual ~Embedder() = default;

    virtual EmbedderLimits limits() const = 0;

    // The vector of each text, all computed in one call; an empty one where the model gave none. REQUIRES: texts within
    // the limits, none of them empty. Errors: out_of_memory; internal: it cannot compute any more.
    virtual Result<std::vector<Vector>> embed(std::span<const Tokens> texts) = 0;
};

}  // namespace luce::engine
