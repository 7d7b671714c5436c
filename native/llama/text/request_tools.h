// RequestTools: the tools of a chat request, read. An agent sends the same with each turn; they are read once.
// Immutable.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <chat.h>

#include "llama/text/special_text.h"
#include "llama/text/text_cache.h"

namespace luce::llama {

class RequestTools {
public:
    // As OpenAI's chat completions spell them, and beside a function's `parameters` what is `enforced` of them; null:
    // none. Throws TextFailure(BAD_ARGUMENT).
    explicit RequestTools(const common_json& tools);

    const std::vector<common_chat_tool>& tools() const { return tools_; }
    // What calls are held to in place of the parameters that the template shows (their text); null: those themselves.
    const common_json* enforced(const std::string& shown) const;
    // About.
    size_t n_bytes() const { return n_bytes_; }
    // Whether no string of them has to be told apart from special tokens (text_marking.h).
    bool is_plain(const SpecialText& special) const;

private:
    std::vector<common_chat_tool> tools_;
    std::unordered_map<std::string, common_json> enforced_;
    size_t n_bytes_ = 0;
    mutable std::atomic<uint64_t> plain_for_ = 0;  // the serial of the special text that was asked for last
};

using RequestToolsPtr = std::shared_ptr<const RequestTools>;

inline size_t bytes_of_tools(const RequestToolsPtr& tools) { return tools->n_bytes(); }

using ToolsCache = TextCache<RequestToolsPtr, bytes_of_tools>;

// JSON. Throws TextFailure(BAD_ARGUMENT).
RequestToolsPtr read_request_tools(std::string_view encoded);

}  // namespace luce::llama
