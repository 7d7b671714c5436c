// From a chat request's JSON (OpenAI's spelling) to the inputs of llama.cpp's template code, checked. Knows nothing of
// vocabularies or rendering.
#pragma once

#include <string>
#include <string_view>

#include <chat.h>

#include "llama/text/prompt_tokenizer.h"

namespace luce::llama {

// JSON text to a value. Throws TextFailure(BAD_ARGUMENT) when it is no JSON or nested so deeply that code which walks
// it recursively (there is much of that in llama.cpp) could exhaust the stack.
common_json parse_json(std::string_view text, const char* what);

// What templates are given, and what only the prompt needs beside it.
struct ChatRequest : common_chat_templates_inputs {
    std::string chosen_tool;  // the one that has to be called; empty: any, or none
    ImageMarkers markers;
};

// texts: contents of messages, one behind the other (luce_text.h). Throws TextFailure(BAD_ARGUMENT).
ChatRequest parse_chat_request(std::string_view json, std::string_view texts);

}  // namespace luce::llama
