// greedy_answer: what a model on the tests' device writes behind a prompt, token by token.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "llama/decoding/llama_decoder.h"
#include "tests/llama/llama_memory.h"

namespace luce::tests {

// The prompt, of 100 tokens, is read in one call, the answer written in as many as it has tokens. `between`: after
// each.
inline Tokens greedy_answer(const llama::Model& model, std::size_t n, llama::ExpertMover* mover = nullptr,
                            const std::function<void()>& between = {}) {
    llama::LlamaDecoder decoder(model, 1);
    decoder.note_experts(mover);
    Tokens tokens = memory_tests::some_tokens(100, 5);
    Position at = 0;
    Tokens answer;
    while (answer.size() < n) {
        const engine::Slice slice{memory_tests::kFirst, at, tokens, 1};
        REQUIRE(decoder.decode(std::span(&slice, 1)));
        if (between) between();
        at += static_cast<Position>(tokens.size());
        const auto logits = decoder.logits(0);
        tokens = {static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
        answer.push_back(tokens[0]);
    }
    decoder.forget(memory_tests::kFirst);
    return answer;
}

}  // namespace luce::tests
