// ReadAnswer: see the header.
#include "llama/text/read_answer.h"

#include <algorithm>
#include <string_view>

#include <common/unicode.h>

#include "llama/text/failure.h"
#include "llama/text/json_text.h"

namespace luce::llama {

namespace {

bool is_white(std::string_view text) { return text.find_first_not_of(" \n\r\t\v\f") == std::string_view::npos; }

// With U+FFFD for what is no UTF-8, as llama.cpp's parser shows it.
std::string sanitised(std::string_view text) {
    std::string shown;
    for (size_t at = 0; at < text.size();) {
        const utf8_parse_result character = common_parse_utf8_codepoint(text, at);
        if (character.status == utf8_parse_result::INCOMPLETE) {
            return shown + "\xEF\xBF\xBD";
        }
        const bool is_text = character.status == utf8_parse_result::SUCCESS;
        shown += is_text ? text.substr(at, character.bytes_consumed) : "\xEF\xBF\xBD";
        at += character.bytes_consumed;
    }
    return shown;
}

class Assembly {
public:
    Assembly(const AnswerText& answer, AnswerEnd end) : answer_(answer), end_(end) {
        result_.message = answer.reading.message;
        result_.message.content.clear();
        result_.message.reasoning_content = answer.openers.unveiled(std::move(result_.message.reasoning_content));
        for (common_chat_tool_call& call : result_.message.tool_calls) {
            call.arguments = answer.openers.unveiled(std::move(call.arguments));
        }
    }

    void add_parts(size_t n_parts) {
        for (size_t n = 0; n < n_parts; ++n) {
            const AnswerPart& part = answer_.reading.parts[n];
            add_asides(part.begin);
            add_gap(part);
            add_part(part);
        }
    }

    void add_end() {
        if (answer_.rest) {
            add_rest(*answer_.rest);
            return;
        }
        drop_pending_call();
        if (is_final() && !answer_.text.is_aside()) {
            add_tail();
        }
        add_asides(std::string_view::npos);
    }

    ReadAnswer take() {
        result_.content_before.resize(result_.message.tool_calls.size(), result_.message.content.size());
        return std::move(result_);
    }

private:
    std::string_view readable() const { return answer_.text.readable().text; }
    bool is_final() const { return end_ != AnswerEnd::none; }

    void add_text(std::string_view text) {
        result_.message.content += answer_.openers.unveiled(sanitised(text));
        ++result_.n_mended;
    }

    void add_part(const AnswerPart& part) {
        if (part.kind == AnswerPart::Kind::content) {
            result_.message.content += answer_.openers.unveiled(part.text);
        }
        while (result_.content_before.size() < part.n_calls) {
            result_.content_before.push_back(result_.message.content.size());
        }
        n_calls_ = part.n_calls;
        at_ = std::max(at_, part.end);
    }

    // Those that stand before a byte of what is readable. White space behind a call is the format's.
    void add_asides(size_t begin) {
        const auto& asides = answer_.text.asides();
        for (; n_asides_ < asides.size() && asides[n_asides_].at <= begin; ++n_asides_) {
            std::string_view text = asides[n_asides_].text.text;
            const bool is_open = answer_.text.is_aside() && n_asides_ + 1 == asides.size();
            if (is_open && !is_final()) {
                text = text.substr(0, answer_.openers.find_begun(text));
            }
            if (!is_white(text)) {
                add_text(text);
            }
        }
    }

    // Between two parts there are marks, and in a call what belongs to it.
    void add_gap(const AnswerPart& next) {
        if (next.begin <= at_) {
            return;
        }
        const std::string_view gap = readable().substr(at_, next.begin - at_);
        if (next.kind == AnswerPart::Kind::call && next.n_calls == n_calls_) {
            result_.n_unaccounted += answer_.marks.n_foreign(gap);
        } else if (!answer_.marks.may_be_all_of(gap)) {
            add_text(answer_.marks.without_marks(gap));
        }
    }

    // Behind what could be read. A thought may have marks behind it; a call is no further than its last byte.
    void add_rest(std::string_view rest) {
        const auto& parts = answer_.reading.parts;
        const bool has_marks = parts.empty() || parts.back().kind != AnswerPart::Kind::call;
        if (has_marks && answer_.marks.may_be_all_of(rest)) {
            return;
        }
        rest = has_marks ? answer_.marks.without_marks(rest) : rest;
        if (!is_white(rest)) {
            add_text(rest);
        }
    }

    // A call that is only beginning is not shown yet; where the model ends its answer so, it is none.
    void drop_pending_call() {
        auto& calls = result_.message.tool_calls;
        if (answer_.reading.is_open && end_ != AnswerEnd::truncated && !calls.empty() && !has_begun(calls.back())) {
            calls.pop_back();
            is_call_dropped_ = true;
        }
    }

    // What follows the last part.
    void add_tail() {
        const auto& parts = answer_.reading.parts;
        size_t from = at_;
        if (is_call_dropped_) {
            from = end_of_last_before(result_.message.tool_calls.size());
        }
        const std::string_view tail = readable().substr(from);
        const std::string_view rest = answer_.marks.without_marks(tail);
        const size_t opener = std::min(answer_.openers.find(tail, 0), answer_.openers.find_begun(tail));
        const bool is_in_call = !parts.empty() && parts.back().kind == AnswerPart::Kind::call && !is_call_dropped_;
        if (opener < tail.size()) {
            add_text(tail.substr(opener));
        } else if (rest.empty() ||
                   (is_in_call && (end_ == AnswerEnd::truncated || answer_.marks.may_be_all_of(rest)))) {
            return;  // marks, the last of them perhaps cut off
        } else if (!parts.empty() && parts.back().kind == AnswerPart::Kind::reasoning) {
            result_.message.reasoning_content += sanitised(tail);
        } else {
            const bool is_in_content = !parts.empty() && parts.back().kind == AnswerPart::Kind::content;
            add_text(is_in_content ? tail : rest);
        }
    }

    size_t end_of_last_before(size_t n_calls) const {
        size_t end = 0;
        for (const AnswerPart& part : answer_.reading.parts) {
            if (part.kind != AnswerPart::Kind::call || part.n_calls <= n_calls) {
                end = std::max(end, part.end);
            }
        }
        return end;
    }

    const AnswerText& answer_;
    const AnswerEnd end_;
    ReadAnswer result_;
    size_t at_ = 0;  // of what is readable, told so far
    size_t n_calls_ = 0;
    size_t n_asides_ = 0;
    bool is_call_dropped_ = false;
};

}  // namespace

bool has_begun(const common_chat_tool_call& call) {
    return !call.name.empty() && !is_white(call.arguments) &&
           call.arguments.find_last_not_of(" \n\r\t{") != std::string::npos;
}

bool has_ended(const common_chat_tool_call& call) {
    try {
        return parse_json(call.arguments, "the arguments").is_object();
    } catch (const TextFailure&) {
        return false;
    }
}

ReadAnswer put_together(const AnswerText& answer, AnswerEnd end) {
    Assembly assembly(answer, end);
    assembly.add_parts(answer.reading.parts.size());
    assembly.add_end();
    return assembly.take();
}

std::string content_before(const AnswerText& answer, size_t n_parts) {
    Assembly assembly(answer, AnswerEnd::none);
    assembly.add_parts(n_parts);
    return assembly.take().message.content;
}

}  // namespace luce::llama
