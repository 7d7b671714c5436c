// LlamaSamplerFactory: samplers on llama.cpp's `common` (penalties, cut-offs, grammar, reasoning budget).
//
// The random draw of a request's i-th generated token is seeded with (seed, i) alone. So it depends neither on what
// else runs nor on how many draws a grammar's rejections cost before it, and a request that is taken up again after i
// tokens goes on with the same draws.
#pragma once

#include <memory>

#include "engine/decoder.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/model/model.h"

namespace luce::llama {

class LlamaSamplerFactory final : public engine::SamplerFactory {
public:
    // Both must outlive the factory and its samplers.
    LlamaSamplerFactory(const Model& model, const LlamaDecoder& decoder) : model_(model), decoder_(decoder) {}

    Result<std::unique_ptr<engine::TokenSampler>> create(const engine::Request& request) override;

private:
    const Model& model_;
    const LlamaDecoder& decoder_;
};

}  // namespace luce::llama
