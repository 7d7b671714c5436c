// LlamaSamplerFactory: samplers on llama.cpp's `common` (penalties, cut-offs, grammar, reasoning budget).
//
// The random draw of a request's i-th generated token is seeded with (seed, i) alone. So it depends neither on what
// else runs nor on how many draws a grammar's rejections cost before it, and a request that is taken up again after i
// tokens goes on with the same draws. And so it does not matter when and on which thread a token is chosen.
#pragma once

#include <memory>
#include <span>

#include "engine/decoder.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/model/model.h"
#include "llama/sampling/worker_pool.h"

namespace luce::llama {

class LlamaSamplerFactory final : public engine::SamplerFactory {
public:
    // Logits of all rows together from which on they are shared out among threads: below, waking a thread takes as
    // long.
    static constexpr std::size_t kLeastShared = std::size_t{1} << 20;

    // Both must outlive the factory and its samplers.
    LlamaSamplerFactory(const Model& model, const LlamaDecoder& decoder)
        : LlamaSamplerFactory(model, decoder, kLeastShared, static_cast<std::size_t>(model.info().n_threads)) {}
    LlamaSamplerFactory(const Model& model, const LlamaDecoder& decoder, std::size_t n_least_shared,
                        std::size_t n_threads)
        : model_(model), decoder_(decoder), n_least_shared_(n_least_shared), workers_(n_threads) {}

    Result<std::unique_ptr<engine::TokenSampler>> create(const engine::Request& request) override;
    void choose_ahead(std::span<const engine::PendingSample> pending) override;

private:
    const Model& model_;
    const LlamaDecoder& decoder_;
    std::size_t n_least_shared_;
    WorkerPool workers_;
};

}  // namespace luce::llama
