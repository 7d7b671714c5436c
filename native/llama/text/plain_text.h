// PlainText: what in an answer's format ends content and reasoning, found out from the format's grammar
// (`common_peg_arena`). An answer that is inside such a text goes on with it as long as nothing comes that may end it,
// so that what comes can be shown without parsing the answer anew. Knows nothing of messages or of what was shown.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <peg-parser.h>
#include <trie.h>

#include "llama/text/answer_delta.h"

namespace luce::llama {

class PlainText {
public:
    // What the grammar says of all texts of a kind, content or reasoning.
    PlainText(const common_peg_arena& grammar, AnswerDelta::Kind kind);

    // Whether they are free up to a delimiter. Content that is JSON is not.
    bool is_free() const { return is_free_; }

    // How many bytes more of a text, in UTF-8, go on with it, without those at their end that may be the beginning of a
    // delimiter; nothing if it may end there. Bytes that were read change nothing for those after them.
    std::optional<size_t> scan(std::string_view bytes) const;

    // The words at which it may end.
    const std::set<std::string>& delimiters() const { return words_; }

    // Whether the text's last bytes may be the beginning of a delimiter.
    bool ends_in_delimiter(std::string_view text) const;

private:
    void note_part(const common_peg_parser_variant& part);

    std::set<std::string> words_;
    common_trie delimiters_;
    size_t longest_delimiter_ = 0;
    bool is_free_ = true;
};

}  // namespace luce::llama
