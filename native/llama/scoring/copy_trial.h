// CopyTrial: how well attention layers find again what a text says twice. From words that stood before, a layer that
// copies looks at what followed them there; the same layers find what a question asks for. The text is ids in any
// order, so that there is nothing else to find. Must not know what is made of it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "llama/scoring/layer_keys.h"

class llama_kv_cache;
struct llama_context;

namespace luce::llama {

class CopyTrial {
public:
    // Computes ids of sequence 0 that go on at this position.
    using Compute = std::function<Result<void>(Position begin, std::span<const Token> ids)>;

    static constexpr std::size_t kText = 128;   // ids
    static constexpr std::size_t kRepeat = 32;  // of them, that come again behind it

    // What part of its attention to the text a layer's best head gives the right key, on average, 0 to 1; layer by
    // layer. Sequence 0 holds kText + kRepeat tokens afterwards. REQUIRES: it is empty, and no computation is under
    // way. Errors: those of `compute`, internal.
    static Result<std::vector<float>> run(llama_context& context, llama_kv_cache& cache,
                                          std::span<const LayerKeys> layers, std::int32_t n_vocab,
                                          const Compute& compute);
};

}  // namespace luce::llama
