// AnswerFormat: one reading of an output by the format of its template, with the places of what it read. llama.cpp's
// parser says what the parts mean; this adds where they stand, so that nothing between them is lost unseen. Knows
// nothing of streaming, or of what is done with text that the format leaves out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <chat.h>
#include <peg-parser.h>

namespace luce::llama {

// A part of an output, by its bytes.
struct AnswerPart {
    enum class Kind { reasoning, content, call };

    Kind kind = Kind::content;
    size_t begin = 0;
    size_t end = 0;
    std::string text;    // of reasoning and content
    size_t n_calls = 0;  // that begin at or before it
};

struct AnswerReading {
    common_chat_msg message;
    std::vector<AnswerPart> parts;  // in order
    size_t end = 0;                 // bytes of the output that the format covers
    bool is_open = false;           // it ends where the format goes on
    bool is_readable = false;       // if not, nothing of it is
    bool has_lost_call = false;     // a call had begun, and is none any more
};

// Makes a format's grammar cover as much of an output as it can, and not fail for what follows that, or for want of a
// call.
void open_grammar(common_peg_arena& grammar);

// REQUIRES: the format's grammar is open.
AnswerReading read_answer(const common_chat_parser_params& format, const common_chat_input& output);

// What a format has around the parts: its literals, and white space.
class FormatMarks {
public:
    explicit FormatMarks(const common_peg_arena& grammar);

    // Without those that are as good in any text: names, and what JSON is made of.
    FormatMarks without_words() const;

    // A text without the marks at its beginning.
    std::string_view without_marks(std::string_view text) const;
    // Whether it is nothing but marks, the last of them perhaps cut off.
    bool may_be_all_of(std::string_view text) const;
    // From the first byte to the last that are neither marks nor of attributes, which some formats leave open in calls:
    // a number (index="1") or a word (json, type="string").
    std::string_view foreign_in(std::string_view text) const;

private:
    FormatMarks() = default;

    size_t n_bytes_of_mark(std::string_view text) const;

    std::vector<std::string> marks_;  // longest first
};

}  // namespace luce::llama
