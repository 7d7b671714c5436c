// Where messages begin in a tokenised prompt. Knows nothing of how the prompt was rendered.
#pragma once

#include <vector>

#include "llama/text/chat_renderer.h"

namespace luce::llama {

// In order, each token once.
std::vector<MessageMark> find_message_marks(const Vocabulary& vocabulary, const SpecialText& special,
                                            const KnownPrompt& known, const common_chat_msg_delimiters& delimiters);

}  // namespace luce::llama
