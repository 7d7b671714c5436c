// RequestMessage: one message of a chat request, read. It follows from the message's bytes alone, so the messages that
// a conversation had before are not read again. Immutable.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include <chat.h>

#include "llama/text/special_text.h"
#include "llama/text/text_cache.h"

namespace luce::llama {

class RequestMessage {
public:
    // As OpenAI's chat completions spell it. Throws TextFailure(BAD_ARGUMENT).
    explicit RequestMessage(const common_json& message);

    const common_chat_msg& chat_msg() const { return message_; }
    // With its template values, about.
    size_t n_bytes() const { return n_bytes_; }
    // What templates see of it in a request with or without tools: frozen, and None where that depends on the others.
    // Throws what llama.cpp throws. `templates`: always the same ones.
    jinja::value template_value(const common_chat_templates& templates, bool has_tools) const;
    // Whether no string of it has to be told apart from special tokens (text_marking.h).
    bool is_plain(const SpecialText& special) const;

private:
    common_chat_msg message_;
    size_t n_bytes_ = 0;
    mutable std::array<std::atomic<jinja::value>, 2> template_values_;  // without tools, with; null: not asked for yet
    mutable std::atomic<uint64_t> plain_for_ = 0;  // the serial of the special text that was asked for last
};

using RequestMessagePtr = std::shared_ptr<const RequestMessage>;

inline size_t bytes_of_message(const RequestMessagePtr& message) { return message->n_bytes(); }

using MessageCache = TextCache<RequestMessagePtr, bytes_of_message>;

// JSON, and behind a line's end the content, where it is a text that is not in the JSON. Throws
// TextFailure(BAD_ARGUMENT).
RequestMessagePtr read_message(std::string_view encoded);

}  // namespace luce::llama
