// What a streamed answer gained from one parse to the next. Knows nothing of parsing.
#pragma once

#include <string>
#include <vector>

#include <chat.h>

namespace luce::llama {

struct AnswerDelta {
    enum class Kind { reasoning, content, tool_call };

    Kind kind = Kind::content;
    std::string text;  // what the reasoning, the content or the tool call's arguments gained
    size_t tool_index = 0;
    std::string tool_id;    // in a tool call's first delta
    std::string tool_name;  // in a tool call's first delta
};

// Brings `shown` up to `now` where `now` continues it, and returns what was added, in its order. What was shown stays
// shown: a field of `now` that takes something back adds nothing. content_before: bytes of content, for each call:
// those that stand before it.
std::vector<AnswerDelta> advance(common_chat_msg& shown, const common_chat_msg& now,
                                 const std::vector<size_t>& content_before);

// Adds later deltas to earlier ones: those that go on with the last one to that.
void add_deltas(std::vector<AnswerDelta>& deltas, std::vector<AnswerDelta> more);

common_json to_json(const std::vector<AnswerDelta>& deltas);
common_json message_json(const common_chat_msg& message);

// The message's text that deltas of this kind add to; not for tool calls.
std::string common_chat_msg::* field_of(AnswerDelta::Kind kind);

bool same_answer(const common_chat_msg& a, const common_chat_msg& b);

}  // namespace luce::llama
