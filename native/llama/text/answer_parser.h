// AnswerParser: a model's output, token by token, into reasoning, content and tool calls, as llama.cpp's parser for
// the template reads it. The final message is always that of one parse of the whole output. On the way what comes
// inside a free text is shown without parsing (text_run.h), and stretches of long texts are left out of what is parsed
// (elision.h), so that a token costs about the same at any length of the answer. Belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <chat.h>

#include "llama/text/answer_delta.h"
#include "llama/text/answer_place.h"
#include "llama/text/chat_renderer.h"
#include "llama/text/text_run.h"

namespace luce::llama {

struct FinishedAnswer {
    std::vector<AnswerDelta> deltas;
    common_chat_msg message;
    bool is_consistent = true;  // all deltas together are the message
};

// Tokens, and the deltas that came with them.
struct AnswerStep {
    size_t n_tokens;
    std::vector<AnswerDelta> deltas;
};

class AnswerParser {
public:
    explicit AnswerParser(std::shared_ptr<const RenderedChat> chat);

    std::vector<AnswerDelta> feed(llama_token id);
    std::vector<AnswerDelta> feed(std::string_view bytes);
    // Several tokens, which are parsed once where they only go on with the field that the last ones belonged to; else
    // one after the other, so that each delta is that of a token.
    std::vector<AnswerStep> feed(const std::vector<llama_token>& ids);

    // truncated: the output was cut off, so it may end inside a tool call. Throws TextFailure(BAD_ANSWER) when the
    // output does not follow the format; message() then still has what was read.
    FinishedAnswer finish(bool truncated);

    // What the deltas so far add up to.
    const common_chat_msg& message() const { return streamed_; }

    uint64_t n_bytes_fed() const { return n_bytes_fed_; }
    uint64_t n_bytes_parsed() const { return n_bytes_parsed_; }

private:
    common_chat_msg parse(const common_chat_input& input, bool is_partial);
    common_chat_input chunk_of(llama_token id) const;
    std::vector<AnswerDelta> feed(const common_chat_input& chunk);
    std::optional<AnswerStep> feed_at_once(const std::vector<llama_token>& ids);
    std::optional<std::vector<AnswerDelta>> parse_at_once(const common_chat_input& ready);
    std::optional<std::vector<AnswerDelta>> pass_in_run(const common_chat_input& ready);
    std::optional<common_chat_msg> try_parse(const common_chat_input& input);
    std::vector<AnswerDelta> parse_window();
    std::vector<AnswerDelta> show(common_chat_msg now);
    bool is_due() const;
    void check_whole();
    bool may_widen() const;
    void widen_window();
    AnswerPlace place_of(const common_chat_input& input);
    void look_ahead(bool is_text);
    void open_run(const OpenText& open);
    bool shorten_window(const AnswerPlace& place);
    bool try_without(const Stretch& stretch, const AnswerPlace& place);
    void remove_prefill(common_chat_msg& message) const;

    std::shared_ptr<const RenderedChat> chat_;
    common_chat_msg prefill_;  // what the prompt already has of this message

    common_chat_input held_;           // an incomplete UTF-8 sequence
    common_chat_input whole_;          // all output
    common_chat_input window_;         // the output without what was elided or passed in a run
    common_chat_msg read_;             // what the parser last made of the window that shows more
    common_chat_msg shown_;            // what of that was shown
    common_chat_msg streamed_;         // the sum of all deltas
    std::optional<AnswerDelta> last_;  // delta, without its text
    DelimiterTries tries_;
    std::optional<TextRun> run_;  // that the output is in: all of the window is shown
    size_t n_unparsed_ = 0;       // bytes at the window's end
    size_t shorten_at_;           // window size at which the next elision is tried
    size_t check_at_;             // output size at which the whole is parsed next
    size_t n_bytes_widened_ = 0;  // parsed once more because the window had become the whole again
    bool may_elide_ = true;
    bool is_finished_ = false;

    uint64_t n_bytes_fed_ = 0;
    uint64_t n_bytes_parsed_ = 0;
};

}  // namespace luce::llama
