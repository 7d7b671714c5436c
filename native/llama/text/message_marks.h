// Where messages begin in a tokenised prompt. Knows nothing of how the prompt was rendered.
#pragma once

#include <string_view>
#include <vector>

#include "llama/text/chat_renderer.h"

namespace luce::llama {

// In order, each token once.
std::vector<MessageMark> find_message_marks(const Vocabulary& vocabulary, const SpecialText& special,
                                            std::string_view prompt, const PromptTokens& tokens,
                                            const common_chat_msg_delimiters& delimiters);

}  // namespace luce::llama
