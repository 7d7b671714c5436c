// From a chat request's JSON (OpenAI's spelling) to the inputs of llama.cpp's template code, checked. Knows nothing of
// vocabularies or rendering.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <chat.h>

#include "llama/text/prompt_tokenizer.h"
#include "llama/text/request_message.h"
#include "llama/text/request_tools.h"

namespace luce::llama {

// What templates are given, and what only the prompt needs beside it.
struct ChatRequest : common_chat_templates_inputs {
    std::vector<RequestMessagePtr> read;  // in place of `messages`, which is empty
    RequestToolsPtr offered;              // the same as `tools`
    std::string chosen_tool;              // the one that has to be called; empty: any, or none
    ImageMarkers markers;
    std::string cache_salt;  // whose texts may be known: those with the same one
};

// first: messages that come before those of the request. texts: tools and messages, one behind the other (luce_text.h).
// Throws TextFailure(BAD_ARGUMENT).
ChatRequest parse_chat_request(std::vector<RequestMessagePtr> first, std::string_view json, std::string_view texts,
                               ToolsCache& known_tools);

}  // namespace luce::llama
