// AnswerParser: see the header.
#include "llama/text/answer_parser.h"

#include <algorithm>
#include <string>
#include <utility>

#include <common/unicode.h>

#include "llama/text/deep_stack.h"
#include "llama/text/failure.h"

namespace luce::llama {

namespace {

// What may be parsed: so much at once, which is a parse for each byte of an answer of 1 KiB, and so much for each byte
// that comes. Of a longer answer each 128th part is shown as it comes where it is no plain text.
constexpr uint64_t kParsedBytes = uint64_t{1} << 19;
constexpr uint64_t kParsedPerFedByte = 128;
// Of a delta and of the output at their ends: as many equal bytes prove that the output was shown to its end.
constexpr size_t kProofBytes = 8;
constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Bytes of the text that are not an unfinished UTF-8 sequence at its end.
size_t complete_utf8(const std::string& text) {
    for (size_t back = 1; back <= 4 && back <= text.size(); ++back) {
        const auto c = static_cast<unsigned char>(text[text.size() - back]);
        if (is_continuation(text[text.size() - back])) {
            continue;
        }
        const size_t length = (c & 0xE0) == 0xC0 ? 2 : (c & 0xF0) == 0xE0 ? 3 : (c & 0xF8) == 0xF0 ? 4 : 1;
        return length > back ? text.size() - back : text.size();
    }
    return text.size();
}

// With U+FFFD for what is no UTF-8: to some formats it would end a thought. What is cut off at the end is one
// character.
common_chat_input well_formed(const common_chat_input& output) {
    common_chat_input whole;
    for (size_t at = 0; at < output.size();) {
        const utf8_parse_result character = common_parse_utf8_codepoint(output.text, at);
        const size_t n =
            character.status == utf8_parse_result::INCOMPLETE ? output.size() - at : character.bytes_consumed;
        const bool is_text = character.status == utf8_parse_result::SUCCESS;
        whole.append(is_text ? output.substr(at, n) : common_chat_input(std::string(kReplacement)));
        at += n;
    }
    return whole;
}

}  // namespace

AnswerParser::AnswerParser(std::shared_ptr<const RenderedChat> chat, bool by_grammar)
    : chat_(std::move(chat)),
      content_(chat_->parser.parser, AnswerDelta::Kind::content),
      reasoning_(chat_->parser.parser, AnswerDelta::Kind::reasoning),
      reader_(chat_, by_grammar),
      n_bytes_affordable_(kParsedBytes),
      may_be_by_schema_(chat_->by_schema.has_value()) {
    if (chat_->continues) {
        if (std::optional<ReadAnswer> prefill = read()) {
            prefill_ = std::move(prefill->message);
        }
        shown_ = prefill_;
    }
}

// As far as it goes.
bool AnswerParser::fits_schema() {
    common_chat_input whole = reader_.readable();
    whole.prepend(chat_->by_schema->generation_prompt);
    n_bytes_parsed_ += whole.size();
    bool fits = false;
    run_nested(bracket_depth(whole.text), [&] {
        common_peg_parse_context context(std::move(whole.text), std::move(whole.tokens), COMMON_PEG_PARSE_FLAG_LENIENT);
        fits = !chat_->by_schema->parser.parse(context).fail();
    });
    return fits;
}

std::optional<ReadAnswer> AnswerParser::read() {
    may_be_by_schema_ = may_be_by_schema_ && fits_schema();
    return may_be_by_schema_ ? read_by_schema(true) : reader_.read(n_bytes_affordable_);
}

ReadAnswer AnswerParser::read_end(bool is_truncated) {
    may_be_by_schema_ = may_be_by_schema_ && fits_schema();
    const uint64_t n_affordable = kParsedBytes + kParsedPerFedByte * reader_.readable().size();
    return may_be_by_schema_ ? read_by_schema(is_truncated) : reader_.finish(is_truncated, n_affordable);
}

// It is JSON, if of whichever schema: in some formats calls are that too, and begin like an answer.
ReadAnswer AnswerParser::read_by_schema(bool is_partial) {
    n_bytes_parsed_ += 2 * reader_.readable().size();
    AnswerReading called = read_answer(chat_->parser, reader_.readable());
    if (called.is_readable && !called.message.tool_calls.empty()) {
        std::vector<size_t> content_before(called.message.tool_calls.size(), called.message.content.size());
        return {std::move(called.message), std::move(content_before), 0, 0};
    }
    ReadAnswer answer = {read_answer(*chat_->by_schema, reader_.readable()).message, {}, 0, 0};
    if (is_partial && (!called.is_readable || called.message.content.empty())) {
        answer.message.content.clear();
    }
    return answer;
}

common_chat_input AnswerParser::chunk_of(llama_token id) const {
    const bool is_marker = chat_->preserved.count(id) > 0;
    common_chat_input chunk;
    chunk.append(chat_->chat_template->vocabulary().piece(id, is_marker), id);
    return chunk;
}

std::vector<AnswerDelta> AnswerParser::feed(llama_token id) {
    return chat_->preserved.count(id) > 0 ? feed(chunk_of(id)) : feed_each_byte(chunk_of(id));
}

std::vector<AnswerDelta> AnswerParser::feed(std::string_view bytes) {
    return feed_each_byte(common_chat_input(std::string(bytes)));
}

// As if it came alone.
std::vector<AnswerDelta> AnswerParser::feed_each_byte(const common_chat_input& bytes) {
    if (auto deltas = is_finished_ ? std::nullopt : continue_text(characters_of(bytes), bytes.size())) {
        return std::move(*deltas);
    }
    std::vector<AnswerDelta> deltas;
    for (size_t at = 0; at < bytes.size(); ++at) {
        add_deltas(deltas, feed(bytes.substr(at, 1)));
    }
    return deltas;
}

std::vector<AnswerDelta> AnswerParser::feed(const common_chat_input& chunk) {
    if (is_finished_) {
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, "the answer is finished");
    }
    Chunk ready = characters_of(chunk);
    if (auto deltas = continue_text(ready, chunk.size())) {
        return std::move(*deltas);
    }
    text_.reset();
    const bool has_grown = ready.characters.size() > 0;
    take(std::move(ready), chunk.size());
    const bool is_parsed = has_grown && reader_.readable().size() <= n_bytes_affordable_;
    return is_parsed ? parse_whole() : std::vector<AnswerDelta>();
}

std::vector<AnswerStep> AnswerParser::feed(const std::vector<llama_token>& ids) {
    if (ids.size() > 1 && text_ && !is_finished_) {
        common_chat_input chunk;
        for (const llama_token id : ids) {
            chunk.append(chunk_of(id));
        }
        if (auto deltas = continue_text(characters_of(chunk), chunk.size())) {
            return {{ids.size(), std::move(*deltas)}};
        }
    }
    std::vector<AnswerStep> steps;
    for (const llama_token id : ids) {
        steps.push_back({1, feed(id)});
    }
    return steps;
}

// The chunk with what was held before it.
AnswerParser::Chunk AnswerParser::characters_of(const common_chat_input& chunk) const {
    common_chat_input bytes = held_;
    bytes.append(chunk);
    const size_t n_complete = complete_utf8(bytes.text);
    return {well_formed(bytes.substr(0, n_complete)), bytes.substr(n_complete)};
}

void AnswerParser::take(Chunk chunk, size_t n_bytes) {
    n_bytes_fed_ += n_bytes;
    n_bytes_affordable_ += kParsedPerFedByte * n_bytes;
    reader_.append(chunk.characters);
    held_ = std::move(chunk.held);
}

// More of the text that the output is in. Nothing, and nothing is changed, where it has to be parsed.
std::optional<std::vector<AnswerDelta>> AnswerParser::continue_text(const Chunk& chunk, size_t n_bytes) {
    if (!text_) {
        return std::nullopt;
    }
    const std::string& whole = reader_.readable().text;
    std::string text = whole.substr(whole.size() - n_bytes_withheld_) + chunk.characters.text;
    const auto n_read = text_of(*text_).scan(text);
    if (!n_read) {
        return std::nullopt;
    }
    take(chunk, n_bytes);
    n_bytes_parsed_ += *n_read;
    n_bytes_withheld_ = text.size() - *n_read;
    text.resize(*n_read);
    if (text.empty()) {
        return std::vector<AnswerDelta>();
    }
    shown_.*field_of(*text_) += text;
    return std::vector<AnswerDelta>{{*text_, std::move(text), 0, "", ""}};
}

const PlainText& AnswerParser::text_of(AnswerDelta::Kind kind) const {
    return kind == AnswerDelta::Kind::reasoning ? reasoning_ : content_;
}

std::vector<AnswerDelta> AnswerParser::parse_whole() {
    const uint64_t n_bytes_before = n_bytes_parsed();
    const std::optional<ReadAnswer> answer = read();
    n_bytes_affordable_ -= std::min(n_bytes_affordable_, n_bytes_parsed() - n_bytes_before);
    if (!answer) {
        return {};
    }
    std::vector<AnswerDelta> deltas = advance(shown_, answer->message, answer->content_before);
    if (answer->n_unaccounted == 0) {
        enter_text(deltas);
    }
    return deltas;
}

// Enters a text if the last parse has shown the output to its end as nothing but that.
void AnswerParser::enter_text(const std::vector<AnswerDelta>& deltas) {
    if (deltas.size() != 1 || deltas[0].kind == AnswerDelta::Kind::tool_call || !reader_.is_whole()) {
        return;
    }
    if (may_be_by_schema_ && deltas[0].kind == AnswerDelta::Kind::content) {
        return;
    }
    const PlainText& text = text_of(deltas[0].kind);
    const std::string_view shown = deltas[0].text;
    const std::string_view whole = reader_.readable().text;
    if (text.is_free() && whole.ends_with(shown.substr(shown.size() - std::min(shown.size(), kProofBytes))) &&
        !text.ends_in_delimiter(whole)) {
        text_ = deltas[0].kind;
        n_bytes_withheld_ = 0;
    }
}

common_chat_msg AnswerParser::without_prefill(common_chat_msg message) const {
    const auto remove = [](std::string& text, const std::string& prefix) {
        if (text.starts_with(prefix)) {
            text.erase(0, prefix.size());
        }
    };
    remove(message.content, prefill_.content);
    remove(message.reasoning_content, prefill_.reasoning_content);
    return message;
}

ReadAnswer AnswerParser::without_prefill(ReadAnswer answer) const {
    const size_t n_content = answer.message.content.size();
    answer.message = without_prefill(std::move(answer.message));
    const size_t n_removed = n_content - answer.message.content.size();
    for (size_t& n : answer.content_before) {
        n -= std::min(n, n_removed);
    }
    return answer;
}

FinishedAnswer AnswerParser::finish(bool truncated) {
    if (is_finished_) {
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, "the answer is finished");
    }
    is_finished_ = true;
    reader_.append(well_formed(held_));
    ReadAnswer read = without_prefill(read_end(truncated));
    FinishedAnswer answer;
    shown_ = message();
    prefill_ = {};
    answer.deltas = advance(shown_, read.message, read.content_before);
    answer.is_consistent = same_answer(shown_, read.message);
    answer.message = std::move(read.message);
    answer.n_mended = read.n_mended;
    answer.n_unaccounted = read.n_unaccounted;
    return answer;
}

}  // namespace luce::llama
