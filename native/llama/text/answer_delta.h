// What a streamed answer gained from one parse to the next. Knows nothing of parsing.
#pragma once

#include <optional>
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

// Brings `shown` up to `now` where `now` continues it, and returns what was added. What was shown stays shown: a field
// of `now` that takes something back adds nothing.
std::vector<AnswerDelta> advance(common_chat_msg& shown, const common_chat_msg& now);

// The same growth on another message, such as the whole answer when `shown` leaves parts out.
void extend(common_chat_msg& message, const std::vector<AnswerDelta>& deltas);

common_json to_json(const std::vector<AnswerDelta>& deltas);
common_json message_json(const common_chat_msg& message);

// Whether `now` takes nothing back of what was shown.
bool continues(const common_chat_msg& shown, const common_chat_msg& now);

// One of a message's texts.
struct AnswerField {
    AnswerDelta::Kind kind;
    size_t tool_index;
};
std::string& text_of(common_chat_msg& message, const AnswerField& field);

// A stretch of one text, all else being the same.
struct LeftOut {
    AnswerField field;
    size_t begin;
    size_t n_bytes;
};
// What `shorter` leaves out of `longer`; none if they differ otherwise, or if arguments, which are JSON, are inside
// other strings or brackets at their end.
std::optional<LeftOut> left_out(const common_chat_msg& longer, const common_chat_msg& shorter);

bool same_answer(const common_chat_msg& a, const common_chat_msg& b);

}  // namespace luce::llama
