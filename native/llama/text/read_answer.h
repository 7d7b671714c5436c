// ReadAnswer: the message that an output is, put together from what its format reads and what is text beside that.
// Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <chat.h>

#include "llama/text/answer_format.h"
#include "llama/text/output_text.h"

namespace luce::llama {

struct ReadAnswer {
    common_chat_msg message;
    std::vector<size_t> content_before;  // bytes of content, for each call: those that stand before it
    size_t n_mended = 0;                 // places of content that the format has none for
    size_t n_unaccounted = 0;            // bytes that are neither in the message nor marks; without an end, that wait
};

enum class AnswerEnd { none, truncated, stopped };

// An output and how it was read.
struct AnswerText {
    const AnswerReading& reading;
    const OutputText& text;
    const std::optional<std::string>& rest;
    const FormatMarks& marks;  // within what the format reads
    const FormatMarks& tags;   // behind it
    const Openers& openers;
};

// Without an end, what is certain to be shown.
ReadAnswer put_together(const AnswerText& answer, AnswerEnd end);

// The content that stands before the part number n_parts.
std::string content_before(const AnswerText& answer, size_t n_parts);

// Whether a call has come so far that it is shown: its name and something of its arguments.
bool has_begun(const common_chat_tool_call& call);
// Whether its arguments are JSON.
bool has_ended(const common_chat_tool_call& call);

}  // namespace luce::llama
