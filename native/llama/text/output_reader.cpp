// OutputReader: see the header.
#include "llama/text/output_reader.h"

#include <algorithm>
#include <string_view>

#include "base/markdown_code.h"
#include "llama/text/plain_text.h"

namespace luce::llama {

namespace {

std::string trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \n\t");
    return begin == std::string_view::npos
               ? ""
               : std::string(text.substr(begin, text.find_last_not_of(" \n\t") - begin + 1));
}

// `at`, or the end of the character that it is within.
size_t character_end(std::string_view text, size_t at) {
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) {
        ++at;
    }
    return at;
}

}  // namespace

OutputReader::OutputReader(std::shared_ptr<const RenderedChat> chat, bool by_grammar)
    : chat_(std::move(chat)), marks_(chat_->parser.parser), tags_(marks_.without_words()) {
    // In some formats a call's beginning closes reasoning too; the first tag is for nothing else.
    const std::vector<std::string>& ends = chat_->params.thinking_end_tags;
    closer_ = ends.empty() ? "" : trimmed(ends.front());
    for (const auto kind : {AnswerDelta::Kind::content, AnswerDelta::Kind::reasoning}) {
        const PlainText text(chat_->parser.parser, kind);
        for (const std::string& word : text.delimiters()) {
            if (trimmed(word) != closer_) {
                openers_.add(word);
            }
        }
    }
    // Under a grammar letters are as good as the token.
    const auto ids = chat_->chat_template->vocabulary().tokenize(closer_, false, true);
    if (!closer_.empty() && !by_grammar && ids.size() == 1) {
        closer_id_ = ids[0];
        openers_.add_veil(closer_);
    }
}

void OutputReader::append(const common_chat_input& output) {
    if (rest_) {
        *rest_ += output.text;
        return;
    }
    if (text_.is_aside()) {
        const size_t n_before = text_.asides().back().text.size();
        text_.append(output);
        look_behind_calls(n_before - std::min(n_before, openers_.longest() - 1));
        return;
    }
    const size_t n_before = text_.readable().size();
    text_.append(output);
    is_read_ = false;
    veil_letters(n_before);
}

// A model that has a token for it means nothing by the letters of it.
void OutputReader::veil_letters(size_t from) {
    if (closer_id_ == LLAMA_TOKEN_NULL) {
        return;
    }
    size_t at = from - std::min(from, closer_.size() - 1);
    for (at = readable().text.find(closer_, at); at != std::string::npos; at = readable().text.find(closer_, at + 1)) {
        const auto first = readable().tokens.begin() + static_cast<std::ptrdiff_t>(at);
        const auto last = first + static_cast<std::ptrdiff_t>(closer_.size());
        if (*first != closer_id_ && std::any_of(first, last, [](auto token) { return token != LLAMA_TOKEN_NULL; })) {
            veil(at);
        }
    }
}

void OutputReader::veil(size_t at) {
    text_.replace_first(at, openers_.veil_of(std::string_view(readable().text).substr(at)));
    n_good_ = std::min(n_good_, at);
    n_veiled_ += openers_.longest() > 1;  // a brace may be anything
}

AnswerReading OutputReader::parse(const common_chat_input& output) {
    n_bytes_parsed_ += output.size() + chat_->parser.generation_prompt.size();
    return read_answer(chat_->parser, output);
}

// Reads, and mends what cannot be read until all of it can, or as much as that may cost has been parsed.
bool OutputReader::settle(uint64_t n_affordable) {
    const uint64_t n_before = n_bytes_parsed_;
    while (!rest_ && !is_read_ && n_bytes_parsed_ - n_before <= n_affordable) {
        reading_ = parse(readable());
        is_read_ = !mend();
        n_good_ = is_read_ ? readable().size() : n_good_;
    }
    return rest_ || is_read_;
}

// Whether there is something else to read now.
bool OutputReader::mend() {
    if (!reading_.is_readable || reading_.has_lost_call) {
        return mend_broken();
    }
    if (veil_in_code()) {
        return true;
    }
    if (reading_.is_open || tags_.may_be_all_of(std::string_view(readable().text).substr(reading_.end))) {
        return false;
    }
    const auto& parts = reading_.parts;
    if (!parts.empty() && parts.back().n_calls > 0) {
        return set_aside(reading_.end);
    }
    const size_t from = parts.empty() ? 0 : parts.back().end;
    const size_t opener = openers_.find(readable().text, from);
    if (opener <= reading_.end) {
        veil(opener);
        return true;
    }
    break_off();
    return false;
}

// A call is none that stands in code: it is quoted.
bool OutputReader::veil_in_code() {
    const auto& parts = reading_.parts;
    const auto call = std::ranges::find(parts, AnswerPart::Kind::call, &AnswerPart::kind);
    if (call == parts.begin() || std::prev(call)->kind != AnswerPart::Kind::content) {
        return false;
    }
    const size_t at = std::prev(call)->end;
    if (!openers_.is_at(readable().text, at) ||
        !ends_in_code(content_before(answer_text(), static_cast<size_t>(call - parts.begin())))) {
        return false;
    }
    veil(at);
    return true;
}

// The output cannot be read from some byte on. A call that was shown by then stays as far as it went, and what comes
// behind it is text; one that was not is text from its beginning.
bool OutputReader::mend_broken() {
    for (size_t n_bad = readable().size(); n_good_ + 1 < n_bad;) {
        const size_t n = n_good_ + (n_bad - n_good_) / 2;
        const size_t end = character_end(readable().text, n);  // half a character cannot be read
        const AnswerReading part = parse(readable().substr(0, end));
        const bool is_good = part.is_readable && !part.has_lost_call && (part.is_open || part.end >= end);
        (is_good ? n_good_ : n_bad) = n;
    }
    n_good_ = character_end(readable().text, n_good_);
    reading_ = parse(readable().substr(0, n_good_));
    if (veil_in_code()) {
        return true;
    }
    const size_t n_calls = drop_unbegun_calls();
    const auto& parts = reading_.parts;
    const bool ends_in_call = !parts.empty() && parts.back().kind == AnswerPart::Kind::call;
    const bool is_in_call = ends_in_call && !has_ended(reading_.message.tool_calls[n_calls - 1]);
    const size_t opener = openers_.find(readable().text, parts.empty() ? 0 : parts.back().end);
    if (is_in_call || opener > n_good_) {
        break_off();
        return false;
    }
    if (!ends_in_call) {
        veil(opener);
        return true;
    }
    return set_aside(opener);
}

// Of what was read, the parts; returns how many calls are left.
size_t OutputReader::drop_unbegun_calls() {
    const auto n_calls = static_cast<size_t>(std::ranges::count_if(reading_.message.tool_calls, has_begun));
    std::erase_if(reading_.parts, [&](const AnswerPart& part) {
        return part.kind == AnswerPart::Kind::call && part.n_calls > n_calls;
    });
    return n_calls;
}

// Whether there is more to read behind it.
bool OutputReader::set_aside(size_t at) {
    const size_t begin = text_.set_aside(at);
    n_good_ = std::min(n_good_, at);
    look_behind_calls(begin + openers_.is_at(text_.asides().back().text.text, begin));
    return !text_.is_aside();
}

void OutputReader::break_off() {
    std::erase_if(reading_.message.tool_calls, [](const auto& call) { return !has_begun(call); });
    const size_t at = reading_.parts.empty() ? 0 : reading_.parts.back().end;
    reading_.end = at;
    rest_ = readable().text.substr(at);
    text_.truncate(at);
    is_read_ = true;
}

// Of the last aside: another call may begin in it, from `from` on.
void OutputReader::look_behind_calls(size_t from) {
    const std::string& text = text_.asides().back().text.text;
    for (size_t at = openers_.find(text, from); at != std::string::npos; at = openers_.find(text, at + 1)) {
        if (!ends_in_code(content_before(answer_text(), reading_.parts.size()) + text.substr(0, at))) {
            text_.take_back(at);
            is_read_ = false;
            return;
        }
    }
}

AnswerText OutputReader::answer_text() const { return {reading_, text_, rest_, marks_, tags_, openers_}; }

std::optional<ReadAnswer> OutputReader::read(uint64_t n_affordable) {
    if (!settle(n_affordable)) {
        return std::nullopt;
    }
    return put_together(answer_text(), AnswerEnd::none);
}

ReadAnswer OutputReader::finish(bool truncated, uint64_t n_affordable) {
    if (!settle(n_affordable)) {
        reading_ = parse(readable().substr(0, n_good_));
        drop_unbegun_calls();
        break_off();
    }
    ReadAnswer answer = put_together(answer_text(), truncated ? AnswerEnd::truncated : AnswerEnd::stopped);
    answer.n_mended += n_veiled_;
    return answer;
}

}  // namespace luce::llama
