// ChatTemplate: a model's chat template as llama.cpp analysed it, and what follows from it for the vocabulary. Made
// once for a model. Immutable: any thread may use it.
#pragma once

#include <memory>
#include <string>

#include <chat.h>

#include "llama/text/special_text.h"
#include "llama/text/vocabulary.h"

namespace luce::llama {

class ChatTemplate {
public:
    // override_source: a template instead of the model's own; empty for none. Throws TextFailure(BAD_TEMPLATE).
    ChatTemplate(std::shared_ptr<const Vocabulary> vocabulary, const std::string& override_source);

    const Vocabulary& vocabulary() const { return *vocabulary_; }
    const common_chat_templates* templates() const { return templates_.get(); }
    std::string source() const;

    // {"source", "capabilities", "supports_thinking"}
    common_json info() const;

private:
    std::shared_ptr<const Vocabulary> vocabulary_;
    common_chat_templates_ptr templates_;
};

}  // namespace luce::llama
