// OutputReader: what an output says, all of it. What the format's parser reads is what it says; whatever that leaves
// out (a call that breaks off, a mark in prose or code, text behind a call) is content, in its place. Knows nothing of
// deltas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <chat.h>

#include "llama/text/answer_format.h"
#include "llama/text/chat_renderer.h"
#include "llama/text/output_text.h"
#include "llama/text/read_answer.h"

namespace luce::llama {

class OutputReader {
public:
    // by_grammar: the output follows one from its beginning.
    OutputReader(std::shared_ptr<const RenderedChat> chat, bool by_grammar);

    // Whole characters.
    void append(const common_chat_input& output);

    // What the format reads. All of the output, if it is whole.
    const common_chat_input& readable() const { return text_.readable(); }
    bool is_whole() const { return !rest_ && text_.asides().empty(); }
    // What is certain to be shown. Nothing, until it is asked again, where that costs more than n_affordable bytes to
    // parse. What was mended stays so: the same output is read the same if it is asked at the same places.
    std::optional<ReadAnswer> read(uint64_t n_affordable);
    // truncated: a limit has cut it off, so that a call at its end stays one. What would cost too much is content.
    ReadAnswer finish(bool truncated, uint64_t n_affordable);

    uint64_t n_bytes_parsed() const { return n_bytes_parsed_; }

private:
    AnswerReading parse(const common_chat_input& output);
    void veil_letters(size_t from);
    void veil(size_t at);
    bool settle(uint64_t n_affordable);
    bool mend();
    bool veil_in_code();
    bool mend_broken();
    size_t drop_unbegun_calls();
    bool set_aside(size_t at);
    void break_off();
    void look_behind_calls(size_t from);
    AnswerText answer_text() const;

    std::shared_ptr<const RenderedChat> chat_;
    FormatMarks marks_;
    FormatMarks tags_;                          // marks that may stand behind what the format reads
    Openers openers_;                           // where calls may begin
    std::string closer_;                        // of reasoning
    llama_token closer_id_ = LLAMA_TOKEN_NULL;  // if it is a token, and only that closes it
    OutputText text_;
    AnswerReading reading_;            // of what is readable
    bool is_read_ = false;             // all of it
    std::optional<std::string> rest_;  // behind what could be read: the output has broken off
    size_t n_good_ = 0;                // bytes of what is readable that are known to be read whole
    size_t n_veiled_ = 0;
    uint64_t n_bytes_parsed_ = 0;
};

}  // namespace luce::llama
