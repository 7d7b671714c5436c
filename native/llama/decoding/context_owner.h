// ContextOwner: who has a libllama context that may go and come back (park): the target's model, a draft's.
#pragma once

#include <string>

struct llama_context;

namespace luce::llama {

class ElasticCache;

class ContextOwner {
public:
    virtual ~ContextOwner() = default;
    virtual llama_context* context() const = 0;
    virtual const std::string& architecture() const = 0;
    virtual ElasticCache* elastic_cache() const { return nullptr; }  // null: all cells have memory for good
};

}  // namespace luce::llama
