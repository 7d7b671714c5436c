// TextMarking: which bytes of a rendered prompt came from messages although they spell special tokens.
//
// The template engine marks the strings that come from outside (is_input), but loses the mark in tojson, split, join
// and for keys, so that a tool's description or a JSON argument could still write frame tokens. Hence another way: the
// prompt is rendered a second time with each such spelling in the inputs replaced by a placeholder. Where the second
// prompt with the spellings put back equals the first, the places of the placeholders are the places of the users'
// text, whatever filters they went through. A template may act on a spelling (Qwen3 splits an assistant's content at
// </think>): then the prompts differ, and the spellings that it acts on are found by halving and handled apart.
//
// Knows templates only as a function from inputs to a prompt.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <chat.h>

#include "llama/text/special_text.h"

namespace luce::llama {

using RenderPrompt = std::function<std::string(const common_chat_templates_inputs&)>;

struct TextMarks {
    std::vector<ByteSpan> spans;  // in order, without overlaps; empty ones are seams between two inputs
};

// Whether no string of it spells a special token, or a part of one at an end: then there is nothing to mark.
bool is_plain(common_chat_msg message, const SpecialText& special);
// The same of the inputs' other strings.
bool is_plain_but_for_messages(const common_chat_templates_inputs& inputs, const SpecialText& special);

// prompt: render(inputs). Nothing, if it is no longer what render gives (a template may print the time): render anew.
std::optional<TextMarks> mark_text(const common_chat_templates_inputs& inputs, const std::string& prompt,
                                   const SpecialText& special, const RenderPrompt& render);

}  // namespace luce::llama
