// Every string of a chat request that a template can see, one after the other, in an order that depends on the
// request's shape only. Knows nothing of what is done to them.
#pragma once

#include <functional>
#include <string>

#include <chat.h>

namespace luce::llama {

enum class InputOrigin {
    answer,  // content or reasoning of an earlier answer: a template may act on the model's own markers in it
    other,
};

using VisitString = std::function<std::string(const std::string&, InputOrigin)>;

// The same of one message alone.
void replace_strings(common_chat_msg& message, const VisitString& visit);

// The inputs with each string replaced by what visit returns for it.
common_chat_templates_inputs replace_strings(const common_chat_templates_inputs& inputs, const VisitString& visit);

}  // namespace luce::llama
