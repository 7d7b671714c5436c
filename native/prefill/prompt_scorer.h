// PromptScorer: how much the pages of a prompt matter to its end, by a model that reads it first and faster. `llama/`
// implements it with a small model; tests with arithmetic. All calls come from the one thread that runs the engine.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "base/token.h"

namespace luce::prefill {

class PromptScorer {
public:
    virtual ~PromptScorer() = default;

    // Whether there is a model, loaded or not.
    virtual bool is_there() const = 0;

    // Reads on, a call of the model, for what has been read of the text before is known. Whether all of it has been.
    // Errors: internal, no_room, out_of_memory, start_failed, unsupported; the text cannot be scored then.
    virtual Result<bool> read(std::span<const Token> text) = 0;

    // One score a page of kChunk tokens, higher is more. REQUIRES: read() has said true of this text. Errors: as there.
    virtual Result<std::vector<float>> scores(std::span<const Token> text) = 0;
};

}  // namespace luce::prefill
