// AnswerParser: a model's output, token by token, into reasoning, content and tool calls, as llama.cpp's parser for
// the template reads it, and all that this leaves out into content (output_reader.h). The final message is always that
// of the whole output. On the way what comes inside a free text is shown without parsing (plain_text.h), each piece at
// once. Anything else is shown by reading the whole output again, as often as keeps the work in proportion to the
// output. Belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <chat.h>

#include "llama/text/answer_delta.h"
#include "llama/text/chat_renderer.h"
#include "llama/text/output_reader.h"
#include "llama/text/plain_text.h"

namespace luce::llama {

struct FinishedAnswer {
    std::vector<AnswerDelta> deltas;
    common_chat_msg message;
    bool is_consistent = true;  // all deltas together are the message
    size_t n_mended = 0;        // places of content that the format has none for
    size_t n_unaccounted = 0;   // bytes that are neither in the message nor marks of the format
};

// Tokens, and the deltas that came with them.
struct AnswerStep {
    size_t n_tokens;
    std::vector<AnswerDelta> deltas;
};

class AnswerParser {
public:
    // by_grammar: the output follows one from its beginning.
    AnswerParser(std::shared_ptr<const RenderedChat> chat, bool by_grammar);

    // A text is taken as if each byte came alone, so that it does not matter where it was cut, by tokens or otherwise.
    std::vector<AnswerDelta> feed(llama_token id);
    std::vector<AnswerDelta> feed(std::string_view bytes);
    // Several tokens: one step if all go on with the text that the answer is in, else one each, so that each delta is
    // that of a token.
    std::vector<AnswerStep> feed(const std::vector<llama_token>& ids);

    // truncated: the output was cut off, so it may end inside a tool call.
    FinishedAnswer finish(bool truncated);

    // What the deltas so far add up to.
    common_chat_msg message() const { return without_prefill(shown_); }

    uint64_t n_bytes_fed() const { return n_bytes_fed_; }
    uint64_t n_bytes_parsed() const { return n_bytes_parsed_ + reader_.n_bytes_parsed(); }

private:
    struct Chunk {
        common_chat_input characters;  // UTF-8
        common_chat_input held;        // the beginning of the next one
    };

    std::optional<ReadAnswer> read();
    ReadAnswer read_end(bool is_truncated);
    ReadAnswer read_by_schema(bool is_partial);
    bool fits_schema();
    common_chat_input chunk_of(llama_token id) const;
    std::vector<AnswerDelta> feed(const common_chat_input& chunk);
    std::vector<AnswerDelta> feed_each_byte(const common_chat_input& bytes);
    Chunk characters_of(const common_chat_input& chunk) const;
    void take(Chunk chunk, size_t n_bytes);
    std::optional<std::vector<AnswerDelta>> continue_text(const Chunk& chunk, size_t n_bytes);
    const PlainText& text_of(AnswerDelta::Kind kind) const;
    std::vector<AnswerDelta> parse_whole();
    void enter_text(const std::vector<AnswerDelta>& deltas);
    common_chat_msg without_prefill(common_chat_msg message) const;
    ReadAnswer without_prefill(ReadAnswer answer) const;

    std::shared_ptr<const RenderedChat> chat_;
    PlainText content_;
    PlainText reasoning_;
    common_chat_msg prefill_;  // what the prompt already has of this message

    common_chat_input held_;                 // an incomplete UTF-8 sequence
    OutputReader reader_;                    // of all output but that
    common_chat_msg shown_;                  // the prefill and the sum of all deltas
    std::optional<AnswerDelta::Kind> text_;  // that the output is inside of
    size_t n_bytes_withheld_ = 0;            // of that text at its end: a delimiter may begin there
    uint64_t n_bytes_affordable_;            // that may be parsed
    bool may_be_by_schema_;                  // the output so far, as JSON; if not, it calls tools
    bool is_finished_ = false;

    uint64_t n_bytes_fed_ = 0;
    uint64_t n_bytes_parsed_ = 0;
};

}  // namespace luce::llama
