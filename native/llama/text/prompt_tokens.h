// PromptTokens: a prompt's ids, and where in its text they begin. Plain values.
#pragma once

#include <cstddef>
#include <vector>

#include <llama.h>

namespace luce::llama {

// A byte of the prompt at which a token is known to begin.
struct TokenAnchor {
    size_t byte = 0;
    size_t token = 0;                   // index into ids
    llama_token id = LLAMA_TOKEN_NULL;  // the special token there, if it is one
};

struct PromptTokens {
    std::vector<llama_token> ids;
    std::vector<TokenAnchor> anchors;  // in order: each special token, each raw stretch between two
};

}  // namespace luce::llama
