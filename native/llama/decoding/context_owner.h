// ContextOwner: who has a libllama context that may go and come back (park): the target's model, a draft's.
#pragma once

#include <string>

struct llama_context;

namespace luce::llama {

class ContextOwner {
public:
    virtual ~ContextOwner() = default;
    virtual llama_context* context() const = 0;
    virtual const std::string& architecture() const = 0;
};

}  // namespace luce::llama
