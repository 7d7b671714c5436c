// AnswerParser: see the header.
#include "llama/text/answer_parser.h"

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "llama/text/deep_stack.h"
#include "llama/text/failure.h"

namespace luce::llama {

namespace {

// A window up to this size is parsed for each token; a larger one, whose text could not be elided, only when it has
// grown by a sixteenth, so that the work stays in proportion to the output.
constexpr size_t kAlwaysParseBytes = 4096;
constexpr size_t kGrowthDivisor = 16;
constexpr size_t kShortenStepBytes = 768;
constexpr size_t kFirstCheckBytes = 16384;

// Bytes of the text that are not an unfinished UTF-8 sequence at its end.
size_t complete_utf8(const std::string& text) {
    for (size_t back = 1; back <= 4 && back <= text.size(); ++back) {
        const auto c = static_cast<unsigned char>(text[text.size() - back]);
        if ((c & 0xC0) == 0x80) {
            continue;
        }
        const size_t length = (c & 0xE0) == 0xC0 ? 2 : (c & 0xF0) == 0xE0 ? 3 : (c & 0xF8) == 0xF0 ? 4 : 1;
        return length > back ? text.size() - back : text.size();
    }
    return text.size();
}

common_chat_input without(const common_chat_input& input, const Elision& elision) {
    common_chat_input shorter = input.substr(0, elision.input_begin);
    shorter.append(input.substr(elision.input_end));
    return shorter;
}

}  // namespace

AnswerParser::AnswerParser(std::shared_ptr<const RenderedChat> chat)
    : chat_(std::move(chat)), shorten_at_(kShortenStepBytes), check_at_(kFirstCheckBytes) {
    if (chat_->continues) {
        try {
            prefill_ = parse({}, true);
        } catch (const std::exception&) {
            prefill_ = {};  // nothing of the prefill can be read yet, so nothing of it is taken off
        }
        window_message_ = prefill_;
    }
}

common_chat_msg AnswerParser::parse(const common_chat_input& input, bool is_partial) {
    n_bytes_parsed_ += input.size();
    common_chat_msg message;
    run_nested(bracket_depth(input.text), [&] { message = common_chat_parse(input, is_partial, chat_->parser); });
    return message;
}

common_chat_input AnswerParser::chunk_of(llama_token id) const {
    const bool is_marker = chat_->preserved.count(id) > 0;
    common_chat_input chunk;
    chunk.append(chat_->chat_template->vocabulary().piece(id, is_marker), id);
    return chunk;
}

std::vector<AnswerDelta> AnswerParser::feed(llama_token id) { return feed(chunk_of(id)); }

std::vector<AnswerDelta> AnswerParser::feed(std::string_view bytes) {
    return feed(common_chat_input(std::string(bytes)));
}

std::vector<AnswerDelta> AnswerParser::feed(const common_chat_input& chunk) {
    if (is_finished_) {
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, "the answer is finished");
    }
    n_bytes_fed_ += chunk.size();
    held_.append(chunk);
    const size_t n_complete = complete_utf8(held_.text);
    const common_chat_input ready = held_.substr(0, n_complete);
    held_ = held_.substr(n_complete);
    if (ready.empty()) {
        return {};
    }
    whole_.append(ready);
    window_.append(ready);
    n_unparsed_ += ready.size();
    return is_due() ? parse_window() : std::vector<AnswerDelta>();
}

std::vector<AnswerStep> AnswerParser::feed(const std::vector<llama_token>& ids) {
    if (ids.size() > 1) {
        if (auto step = feed_at_once(ids)) {
            return {std::move(*step)};
        }
    }
    std::vector<AnswerStep> steps;
    for (const llama_token id : ids) {
        steps.push_back({1, feed(id)});
    }
    return steps;
}

// Nothing, and nothing is changed, where the tokens have to be looked at one by one.
std::optional<AnswerStep> AnswerParser::feed_at_once(const std::vector<llama_token>& ids) {
    common_chat_input fed = held_;
    for (const llama_token id : ids) {
        fed.append(chunk_of(id));
    }
    const size_t n_complete = complete_utf8(fed.text);
    common_chat_input longer = window_;
    longer.append(fed.substr(0, n_complete));
    if (is_finished_ || !last_ || n_complete == 0 || longer.size() > kAlwaysParseBytes) {
        return std::nullopt;
    }
    common_chat_msg now;
    try {
        now = parse(longer, true);
    } catch (const std::exception&) {
        return std::nullopt;
    }
    common_chat_msg shown = window_message_;
    const std::vector<AnswerDelta> deltas = advance(shown, now);
    if (deltas.size() != 1 || deltas[0].kind != last_->kind || deltas[0].tool_index != last_->tool_index ||
        !deltas[0].tool_name.empty() || !deltas[0].tool_id.empty()) {
        return std::nullopt;
    }
    n_bytes_fed_ += fed.size() - held_.size();
    whole_.append(fed.substr(0, n_complete));
    held_ = fed.substr(n_complete);
    window_ = std::move(longer);
    n_unparsed_ = 0;
    return AnswerStep{ids.size(), show(now)};
}

bool AnswerParser::is_due() const {
    return window_.size() <= kAlwaysParseBytes || n_unparsed_ * kGrowthDivisor >= window_.size();
}

std::vector<AnswerDelta> AnswerParser::parse_window() {
    n_unparsed_ = 0;
    common_chat_msg now;
    try {
        now = parse(window_, true);
    } catch (const std::exception&) {
        return {};  // not yet readable; if it never is, finish() says so
    }
    return show(now);
}

// What the window now says, and a shorter window if it can be had.
std::vector<AnswerDelta> AnswerParser::show(const common_chat_msg& now) {
    std::vector<AnswerDelta> deltas = advance(window_message_, now);
    extend(streamed_, deltas);
    if (!deltas.empty()) {
        last_ = AnswerDelta{deltas.back().kind, "", deltas.back().tool_index, "", ""};
    }
    if (may_elide_ && same_answer(window_message_, now)) {
        if (whole_.size() >= check_at_ && window_.size() < whole_.size()) {
            check_whole();
        } else if (window_.size() >= shorten_at_) {
            shorten_window();
        }
    }
    return deltas;
}

// The proof against a mistake in the reasoning of elision.h: at doubling sizes the whole output is parsed as well. If
// it ever says something else, the window is the whole from there on.
void AnswerParser::check_whole() {
    check_at_ = whole_.size() * 2;
    common_chat_msg now;
    try {
        now = parse(whole_, true);
        remove_prefill(now);
    } catch (const std::exception&) {
        now = {};
    }
    if (!same_answer(now, streamed_)) {
        may_elide_ = false;
        window_ = whole_;
        window_message_ = streamed_;
        window_message_.content.insert(0, prefill_.content);
        window_message_.reasoning_content.insert(0, prefill_.reasoning_content);
    }
}

void AnswerParser::shorten_window() {
    bool shortened = false;
    if (!window_message_.tool_calls.empty()) {
        std::string& arguments = window_message_.tool_calls.back().arguments;
        shortened = try_elision(arguments, FieldSpelling::plain, true) ||
                    try_elision(arguments, FieldSpelling::json_escaped, true);
    }
    shortened = shortened || try_elision(window_message_.content, FieldSpelling::plain, chat_->content_is_json) ||
                try_elision(window_message_.reasoning_content, FieldSpelling::plain, false);
    shorten_at_ = window_.size() + (shortened ? kShortenStepBytes / 2 : window_.size() / 4);
}

// field: a member of window_message_. Takes the stretch out of the window if the parser then reads the same answer,
// that stretch left out.
bool AnswerParser::try_elision(std::string& field, FieldSpelling spelling, bool field_is_json) {
    const auto elision = find_elision(window_.text, field, spelling, field_is_json);
    if (!elision) {
        return false;
    }
    const std::string before = field;
    common_chat_input shorter = without(window_, *elision);
    field.erase(elision->field_begin, elision->field_end - elision->field_begin);
    try {
        if (same_answer(parse(shorter, true), window_message_)) {
            window_ = std::move(shorter);
            return true;
        }
    } catch (const std::exception&) {
        // Not readable without the stretch: it stays.
    }
    field = before;
    return false;
}

void AnswerParser::remove_prefill(common_chat_msg& message) const {
    const auto remove = [](std::string& text, const std::string& prefix) {
        if (text.compare(0, prefix.size(), prefix) == 0) {
            text.erase(0, prefix.size());
        }
    };
    remove(message.content, prefill_.content);
    remove(message.reasoning_content, prefill_.reasoning_content);
}

FinishedAnswer AnswerParser::finish(bool truncated) {
    if (is_finished_) {
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, "the answer is finished");
    }
    is_finished_ = true;
    whole_.append(held_);
    FinishedAnswer answer;
    try {
        answer.message = parse(whole_, truncated);
    } catch (const std::exception& e) {
        throw TextFailure(LUCE_TEXT_BAD_ANSWER, e.what());
    }
    remove_prefill(answer.message);
    answer.deltas = advance(streamed_, answer.message);
    answer.is_consistent = same_answer(streamed_, answer.message);
    return answer;
}

}  // namespace luce::llama
