// RequestMessage: one message of a chat request, read. It follows from the message's bytes alone, so who keeps it need
// not have a conversation's earlier messages read again. Immutable.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include <chat.h>

#include "llama/text/special_text.h"

namespace luce::llama {

class RequestMessage {
public:
    // As OpenAI's chat completions spell it. Throws TextFailure(BAD_ARGUMENT).
    explicit RequestMessage(const common_json& message);

    const common_chat_msg& chat_msg() const { return message_; }
    // Whether no string of it has to be told apart from special tokens (text_marking.h).
    bool is_plain(const SpecialText& special) const;

private:
    common_chat_msg message_;
    mutable std::atomic<uint64_t> plain_for_ = 0;  // the serial of the special text that was asked for last
};

using RequestMessagePtr = std::shared_ptr<const RequestMessage>;

// JSON, and behind a line's end the content, where it is a text that is not in the JSON. Throws
// TextFailure(BAD_ARGUMENT).
RequestMessagePtr read_message(std::string_view encoded);

}  // namespace luce::llama
