// Rendering a chat: the model's template over the messages, the prompt's token ids, and all that sampling and parsing
// of the answer need. Knows nothing of C, ctypes or how the daemon is told.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <chat.h>

#include "llama/text/chat_template.h"
#include "llama/text/prompt_tokenizer.h"
#include "llama/text/request_message.h"
#include "llama/text/text_marking.h"

namespace luce::llama {

enum class MarkRole : int64_t { Unknown, System, Developer, User, Assistant, Tool };

// The token at which a message begins.
struct MessageMark {
    size_t token = 0;
    size_t byte = 0;
    MarkRole role = MarkRole::Unknown;
};

// Immutable; any number of answer parsers may share it.
struct RenderedChat {
    std::shared_ptr<const ChatTemplate> chat_template;

    common_chat_params params;  // without the prompt
    std::string prompt;
    PromptTokens tokens;
    std::vector<MessageMark> marks;
    TextMarks text;

    // As llama.cpp resolves them for sampling: a trigger word that is one token becomes a token trigger.
    std::vector<common_grammar_trigger> triggers;
    std::set<llama_token> preserved;

    common_chat_parser_params parser;
    // Of an answer by the request's schema, where the model may call tools instead: what fits it is none of their
    // calls.
    std::optional<common_chat_parser_params> by_schema;
    bool continues = false;  // the answer goes on with the last message
};

// first: messages that come before those of the request. Throws TextFailure: BAD_ARGUMENT for the request, BAD_TEMPLATE
// when the template refuses it.
std::shared_ptr<const RenderedChat> render_chat(std::shared_ptr<const ChatTemplate> chat_template,
                                                std::vector<RequestMessagePtr> first, std::string_view request_json,
                                                std::string_view texts);

common_json to_json(const RenderedChat& chat);

}  // namespace luce::llama
