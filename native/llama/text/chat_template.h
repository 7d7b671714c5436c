// ChatTemplate: a model's chat template as llama.cpp analysed it, and what follows from it for the vocabulary. Made
// once for a model, with what its prompts have in common. Any thread may use it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <chat.h>

#include "llama/text/request_tools.h"
#include "llama/text/special_text.h"
#include "llama/text/token_cache.h"
#include "llama/text/vocabulary.h"

namespace luce::llama {

class ChatTemplate {
public:
    // override_source: a template instead of the model's own; empty for none. Throws TextFailure(BAD_TEMPLATE).
    ChatTemplate(std::shared_ptr<const Vocabulary> vocabulary, const std::string& override_source);

    const Vocabulary& vocabulary() const { return *vocabulary_; }
    const common_chat_templates* templates() const { return templates_.get(); }
    std::string source() const;
    TokenCache& texts() const { return texts_; }
    ToolsCache& tools() const { return tools_; }
    // As the requests' frames are mostly the same, the last one's is kept: the whole vocabulary is looked through.
    std::shared_ptr<const SpecialText> special_text(const std::vector<std::string>& frame) const;

    // {"source", "capabilities", "supports_thinking"}
    common_json info() const;

private:
    std::shared_ptr<const Vocabulary> vocabulary_;
    common_chat_templates_ptr templates_;
    mutable TokenCache texts_;
    mutable ToolsCache tools_;
    mutable std::mutex mutex_;
    mutable std::vector<std::string> frame_;
    mutable std::shared_ptr<const SpecialText> special_text_;  // of frame_
};

}  // namespace luce::llama
