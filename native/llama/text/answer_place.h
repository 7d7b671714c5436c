// Where an unfinished answer has come to in the grammar of its chat format.
//
// Between two of a format's markers llama.cpp's parser reads free text: all up to one of some delimiters, or a quoted
// string. While an answer is inside one, whatever comes and does not end it only makes that text longer: every other
// decision of the parser has been taken on bytes that are there already and would be taken again. And where a format
// lets something be repeated, what comes is read alike however often it has been there. Both are found out from the
// grammar itself (`common_peg_arena`), which is walked as llama.cpp's parser does, noting how far each part has looked.
// A part that has seen the input's end may decide otherwise once there is more of it; then no text is open. Builds no
// message; knows no format. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <peg-parser.h>
#include <trie.h>

namespace luce::llama {

// The delimiters of a grammar's free texts, prepared for search on first use.
class DelimiterTries {
public:
    const common_trie& of(const common_peg_until_parser& text);

private:
    std::map<const common_peg_until_parser*, common_trie> tries_;
};

struct OpenText {
    const common_peg_until_parser* until;    // what it is: a text up to delimiters, or
    const common_peg_string_parser* quoted;  // the inside of a quoted string
    size_t begin;                            // where it begins in the input; it reaches to the input's end
    size_t looked_to;                        // the end of what other parts of the grammar have looked at
    std::vector<std::string_view> tags;      // that it stands in, the outermost first
};

struct Stretch {
    size_t begin;
    size_t end;
};

struct AnswerPlace {
    bool is_readable = false;                // what is there follows the format so far
    size_t n_ahead = 0;                      // bytes at the input's end that nothing of the message is made of yet
    std::vector<common_peg_parser_id> path;  // the parts of the grammar that want more, each within the one before

    // Whether the same may come next, and would be read alike.
    bool is_like(const AnswerPlace& other) const {
        return is_readable && other.is_readable && n_ahead == other.n_ahead && path == other.path;
    }

    std::optional<OpenText> open;
    // Long stretches only:
    std::vector<Stretch> texts;     // free texts that have ended
    std::vector<Stretch> repeated;  // from the end of the first to the prefix of the last of what is repeated
};

// What points into the grammar: as long as that lives.
AnswerPlace find_place(const common_peg_arena& grammar, DelimiterTries& tries, std::string_view input);

}  // namespace luce::llama
