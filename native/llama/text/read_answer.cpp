// ReadAnswer: see the header.
#include "llama/text/read_answer.h"

#include <algorithm>
#include <string_view>

#include "llama/text/failure.h"
#include "llama/text/json_text.h"

namespace luce::llama {

namespace {

bool is_white(std::string_view text) { return text.find_first_not_of(" \n\r\t\v\f") == std::string_view::npos; }

class Assembly {
public:
    Assembly(const AnswerText& answer, AnswerEnd end) : answer_(answer), end_(end) {
        result_.message = answer.reading.message;
        result_.message.content.clear();
        result_.message.reasoning_content = answer.openers.unveiled(std::move(result_.message.reasoning_content));
        for (common_chat_tool_call& call : result_.message.tool_calls) {
            call.arguments = answer.openers.unveiled(std::move(call.arguments));
        }
        drop_pending_call();
    }

    void add_parts(size_t n_parts) {
        for (size_t n = 0; n < n_parts; ++n) {
            const AnswerPart& part = answer_.reading.parts[n];
            if (part.kind == AnswerPart::Kind::call && part.n_calls > result_.message.tool_calls.size()) {
                return;  // of the one that is dropped, which is the last
            }
            if (!is_final() && part.kind == AnswerPart::Kind::content && may_be_an_end(part)) {
                return;
            }
            add_asides(part.begin);
            add_gap(part.begin, part.kind == AnswerPart::Kind::call && part.n_calls == n_calls_);
            add_part(part);
        }
    }

    void add_end() {
        add_asides(std::string_view::npos);
        if (answer_.rest) {
            add_rest(*answer_.rest);
        } else if (is_final()) {
            add_tail();
        }
    }

    ReadAnswer take() {
        result_.content_before.resize(result_.message.tool_calls.size(), result_.message.content.size());
        result_.n_unaccounted = n_written() - std::min(n_written(), n_told_);
        return std::move(result_);
    }

private:
    std::string_view readable() const { return answer_.text.readable().text; }
    bool is_final() const { return end_ != AnswerEnd::none; }
    bool ends_in(AnswerPart::Kind kind) const { return last_ != nullptr && last_->kind == kind; }

    // Whether a text is perhaps none, but the beginning of what ends the thought before it.
    bool may_be_an_end(const AnswerPart& part) const {
        const size_t begun = answer_.openers.find_begun(readable());
        return begun < readable().size() && part.begin >= begun;
    }

    size_t n_written() const {
        size_t n = readable().size() + (answer_.rest ? answer_.rest->size() : 0);
        for (const OutputText::Aside& aside : answer_.text.asides()) {
            n += aside.text.size();
        }
        return n;
    }

    // A call that is only beginning is not shown yet; where the model ends its answer so, it is none.
    void drop_pending_call() {
        auto& calls = result_.message.tool_calls;
        if (answer_.reading.is_open && end_ != AnswerEnd::truncated && !calls.empty() && !has_begun(calls.back())) {
            calls.pop_back();
        }
    }

    void add_text(std::string_view text) {
        result_.message.content += answer_.openers.unveiled(std::string(text));
        n_told_ += text.size();
        ++result_.n_mended;
    }

    // What is in no field, as far as the format has marks like it.
    void pass_marks(std::string_view text) {
        const auto& marks = answer_.marks;
        n_told_ += text.size() - (marks.may_be_all_of(text) ? 0 : marks.without_marks(text).size());
    }

    void add_part(const AnswerPart& part) {
        if (part.kind == AnswerPart::Kind::content) {
            result_.message.content += answer_.openers.unveiled(part.text);
        }
        while (result_.content_before.size() < part.n_calls) {
            result_.content_before.push_back(result_.message.content.size());
        }
        n_calls_ = part.n_calls;
        last_ = &part;
        n_told_ += part.end - std::min(at_, part.end);
        at_ = std::max(at_, part.end);
    }

    // Those that stand at or before a byte of what is readable, with what of that stands before them.
    void add_asides(size_t begin) {
        const auto& asides = answer_.text.asides();
        for (; n_asides_ < asides.size() && asides[n_asides_].at <= begin; ++n_asides_) {
            const OutputText::Aside& aside = asides[n_asides_];
            add_gap(std::min(aside.at, readable().size()), false);
            const bool is_open = answer_.text.is_aside() && n_asides_ + 1 == asides.size();
            std::string_view text = aside.text.text;
            if (is_open && !is_final()) {
                text = text.substr(0, answer_.openers.find_begun(text));
            }
            if (is_white(text)) {  // behind a call it is the format's
                pass_marks(text);
            } else {
                add_text(text);
            }
        }
    }

    // Up to a byte of what is readable there are marks, and within a call attributes.
    void add_gap(size_t end, bool is_within_call) {
        if (end <= at_) {
            return;
        }
        const std::string_view gap = readable().substr(at_, end - at_);
        at_ = end;
        if (is_within_call) {
            add_foreign(gap);
        } else if (answer_.marks.may_be_all_of(gap)) {
            pass_marks(gap);
        } else {
            add_from(gap, answer_.marks.without_marks(gap));
        }
    }

    // Of a text that begins with marks, what follows them.
    void add_from(std::string_view text, std::string_view rest) {
        pass_marks(text.substr(0, text.size() - rest.size()));
        add_text(rest);
    }

    void add_foreign(std::string_view text) {
        const std::string_view foreign = answer_.marks.foreign_in(text);
        n_told_ += text.size() - foreign.size();
        if (!foreign.empty()) {
            add_text(foreign);
        }
    }

    // Whether any of the last call's have come. Its reader opens an object as soon as it has a name.
    bool has_arguments() const {
        return has_begun(result_.message.tool_calls.back()) || readable().substr(0, at_).ends_with('{');
    }

    // What a limit has cut off in a call is of its arguments.
    void add_to_call(std::string_view text) {
        const std::string_view rest = answer_.tags.may_be_all_of(text) ? "" : answer_.tags.without_marks(text);
        pass_marks(text.substr(0, text.size() - rest.size()));
        result_.message.tool_calls.back().arguments += answer_.openers.unveiled(std::string(rest));
        n_told_ += rest.size();
    }

    // Behind what could be read. A text may have marks behind it; a call is no further than its last byte.
    void add_rest(std::string_view rest) {
        pass_marks(readable().substr(at_));
        const bool has_marks = last_ != nullptr && last_->kind != AnswerPart::Kind::call;
        const bool is_mark = has_marks && answer_.tags.may_be_all_of(rest);
        const std::string_view text = has_marks ? answer_.tags.without_marks(rest) : rest;
        if (is_mark || is_white(text)) {
            pass_marks(rest);
        } else {
            add_from(rest, text);
        }
    }

    // What follows the last part: marks, the last of them perhaps cut off, and text from the first byte that is none. A
    // word at which a call begins is text: none has begun.
    void add_tail() {
        const std::string_view tail = readable().substr(at_);
        const size_t n_marks = tail.size() - answer_.marks.without_marks(tail).size();
        const size_t opener = std::min(answer_.openers.find(tail, 0), answer_.openers.find_begun(tail));
        const size_t begin = std::min(opener, n_marks);
        const bool is_text = opener < tail.size();
        const bool is_cut_off = ends_in(AnswerPart::Kind::call) && !is_text && end_ == AnswerEnd::truncated;
        if (is_cut_off && has_arguments() && !has_ended(result_.message.tool_calls.back())) {
            add_to_call(tail);
        } else if (begin == tail.size() ||
                   (ends_in(AnswerPart::Kind::call) && !is_text && answer_.marks.may_be_all_of(tail))) {
            pass_marks(tail);
        } else if (is_cut_off) {
            add_foreign(tail);
        } else if (ends_in(AnswerPart::Kind::reasoning) && !is_text && is_white(tail.substr(0, begin))) {
            result_.message.reasoning_content += tail;
            n_told_ += tail.size();
        } else {
            const bool is_whole =
                last_ == nullptr || (ends_in(AnswerPart::Kind::content) && is_white(tail.substr(0, begin)));
            add_from(tail, is_whole ? tail : tail.substr(begin));
        }
    }

    const AnswerText& answer_;
    const AnswerEnd end_;
    ReadAnswer result_;
    size_t at_ = 0;      // of what is readable, told so far
    size_t n_told_ = 0;  // bytes of all that was written
    size_t n_calls_ = 0;
    size_t n_asides_ = 0;
    const AnswerPart* last_ = nullptr;  // that was added
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
