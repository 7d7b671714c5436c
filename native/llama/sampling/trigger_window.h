// TriggerWindow: the end of a text in which a trigger of a lazy grammar may have begun. While the grammar waits,
// llama.cpp searches all of the answer again at each token; it finds the same when it is shown only the tokens that the
// trigger lies in. A trigger in Markdown's code is none: the model quotes it. Knows no grammar.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/markdown_code.h"
#include "base/token.h"
#include "engine/request.h"

namespace luce::llama {

class TriggerWindow {
public:
    // None if one of them may match a text of any length.
    static std::optional<TriggerWindow> of(std::span<const engine::Trigger> triggers);

    // The text goes on with this token. Returns what the grammar is to accept, in order: nothing while no trigger is
    // complete, then the tokens that hold it. `piece` is the token's text. REQUIRES: it has returned nothing so far.
    Tokens add(Token token, const std::string& piece);

private:
    bool is_in_code(std::size_t at) const;
    std::size_t find_word(std::size_t n_new_bytes) const;
    Tokens shown_from(std::size_t at) const;

    Tokens tokens_;
    std::vector<std::string> words_;
    std::size_t n_longest_ = 0;  // bytes of a word
    MarkdownCode dropped_;       // the text before what is left
    // What is left of the text:
    struct Piece {
        Token token;
        std::size_t n_bytes;
    };
    std::deque<Piece> pieces_;
    std::string text_;
};

}  // namespace luce::llama
