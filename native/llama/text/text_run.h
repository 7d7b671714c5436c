// TextRun: an answer inside a free text (answer_place.h) that a message shows as it is, be it content or reasoning.
// What comes and holds nothing that could end the text belongs to the field, without any parsing. Knows nothing of
// windows.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "llama/text/answer_delta.h"
#include "llama/text/answer_place.h"

namespace luce::llama {

class TextRun {
public:
    // input: what has been parsed, message: as what. Nothing where the open text is not what one of the message's
    // fields ends with, or where that field may still be shown otherwise.
    static std::optional<TextRun> open(const OpenText& text, DelimiterTries& tries, std::string_view input,
                                       const common_chat_msg& message);

    // These bytes as the field shows them; nothing if they may end the text, or if the parser has to see them for
    // another reason. Bytes that passed change nothing for those after them.
    std::optional<std::string> pass(std::string_view bytes) const;

    // A part of the open text as the field shows it; nothing if it can't be.
    std::optional<std::string> shown(std::string_view bytes) const;

    AnswerDelta::Kind kind() const { return kind_; }
    std::string common_chat_msg::* field() const;

private:
    explicit TextRun(AnswerDelta::Kind kind) : kind_(kind) {}

    AnswerDelta::Kind kind_;
    const common_trie* delimiters_ = nullptr;  // none: a quoted string
    std::array<bool, 256> may_end_ = {};       // bytes with which what ends the text may begin
};

}  // namespace luce::llama
