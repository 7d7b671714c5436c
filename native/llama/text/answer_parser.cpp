// AnswerParser: see the header.
#include "llama/text/answer_parser.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "llama/text/deep_stack.h"
#include "llama/text/elision.h"
#include "llama/text/failure.h"

namespace luce::llama {

namespace {

// A window up to this size is parsed for each token; a larger one, whose text could not be elided, only when it has
// grown by a sixteenth, so that the work stays in proportion to the output.
constexpr size_t kAlwaysParseBytes = 8192;
constexpr size_t kGrowthDivisor = 16;
constexpr size_t kShortenStepBytes = 768;
constexpr int kElisionsAtOnce = 8;
constexpr size_t kFirstCheckBytes = 16384;
// What may be parsed because the window had to become the whole again, to that which was fed and besides.
constexpr size_t kWidenedPerFedByte = 64;
constexpr size_t kWidenedBytes = size_t{1} << 20;

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

common_chat_input without(const common_chat_input& input, const Stretch& stretch) {
    common_chat_input shorter = input.substr(0, stretch.begin);
    shorter.append(input.substr(stretch.end));
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
        read_ = shown_ = prefill_;
    }
}

common_chat_msg AnswerParser::parse(const common_chat_input& input, bool is_partial) {
    n_bytes_parsed_ += input.size();
    common_chat_msg message;
    run_nested(bracket_depth(input.text), [&] { message = common_chat_parse(input, is_partial, chat_->parser); });
    return message;
}

std::optional<common_chat_msg> AnswerParser::try_parse(const common_chat_input& input) {
    try {
        return parse(input, true);
    } catch (const std::exception&) {
        return std::nullopt;
    }
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
    if (auto deltas = pass_in_run(ready)) {
        return std::move(*deltas);
    }
    run_.reset();
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
    const common_chat_input ready = fed.substr(0, complete_utf8(fed.text));
    if (is_finished_ || !last_ || ready.empty()) {
        return std::nullopt;
    }
    auto deltas = pass_in_run(ready);
    if (!deltas) {
        deltas = parse_at_once(ready);
    }
    if (!deltas) {
        return std::nullopt;
    }
    n_bytes_fed_ += fed.size() - held_.size();
    held_ = fed.substr(ready.size());
    return AnswerStep{ids.size(), std::move(*deltas)};
}

std::optional<std::vector<AnswerDelta>> AnswerParser::parse_at_once(const common_chat_input& ready) {
    common_chat_input longer = window_;
    longer.append(ready);
    if (longer.size() > kAlwaysParseBytes) {
        return std::nullopt;
    }
    auto now = try_parse(longer);
    if (!now || !continues(read_, *now)) {
        return std::nullopt;
    }
    common_chat_msg shown = shown_;
    const std::vector<AnswerDelta> deltas = advance(shown, *now);
    if (deltas.size() != 1 || deltas[0].kind != last_->kind || deltas[0].tool_index != last_->tool_index ||
        !deltas[0].tool_name.empty() || !deltas[0].tool_id.empty()) {
        return std::nullopt;
    }
    run_.reset();
    whole_.append(ready);
    window_ = std::move(longer);
    n_unparsed_ = 0;
    return show(std::move(*now));
}

// Nothing, and nothing is changed, where these bytes have to be parsed.
std::optional<std::vector<AnswerDelta>> AnswerParser::pass_in_run(const common_chat_input& ready) {
    auto text = run_ ? run_->pass(ready.text) : std::nullopt;
    if (!text) {
        return std::nullopt;
    }
    n_bytes_parsed_ += ready.size();
    whole_.append(ready);
    std::vector<AnswerDelta> deltas = {{run_->kind(), std::move(*text), 0, "", ""}};
    extend(streamed_, deltas);
    return deltas;
}

bool AnswerParser::is_due() const {
    return window_.size() <= kAlwaysParseBytes || n_unparsed_ * kGrowthDivisor >= window_.size();
}

std::vector<AnswerDelta> AnswerParser::parse_window() {
    n_unparsed_ = 0;
    auto now = try_parse(window_);
    if (now && !continues(read_, *now) && may_widen()) {
        common_chat_msg shown = shown_;
        if (advance(shown, *now).empty()) {
            return {};
        }
        // What was read before is now read as something else: then what was left out is, too.
        widen_window();
        now = try_parse(window_);
    }
    // What is not readable yet may become so; if it never does, finish() says so.
    return now ? show(std::move(*now)) : std::vector<AnswerDelta>();
}

// What the window now says, and a way to parse less from here on if there is one.
std::vector<AnswerDelta> AnswerParser::show(common_chat_msg now) {
    read_ = std::move(now);
    std::vector<AnswerDelta> deltas = advance(shown_, read_);
    extend(streamed_, deltas);
    if (!deltas.empty()) {
        last_ = AnswerDelta{deltas.back().kind, "", deltas.back().tool_index, "", ""};
    }
    if (whole_.size() >= check_at_ && window_.size() < whole_.size() && same_answer(shown_, read_)) {
        check_whole();
    }
    if (may_elide_) {
        look_ahead(!deltas.empty() && last_->kind != AnswerDelta::Kind::tool_call);
    }
    return deltas;
}

// The proof against a mistake in the reasoning of answer_place.h: at doubling sizes the whole output is parsed as well.
// If it ever says something else, the window is the whole from there on.
void AnswerParser::check_whole() {
    check_at_ = whole_.size() * 2;
    common_chat_msg now = try_parse(whole_).value_or(common_chat_msg());
    remove_prefill(now);
    if (!same_answer(now, streamed_)) {
        may_elide_ = false;
        widen_window();
    }
}

bool AnswerParser::may_widen() const {
    return window_.size() < whole_.size() &&
           n_bytes_widened_ + whole_.size() <= kWidenedBytes + kWidenedPerFedByte * n_bytes_fed_;
}

void AnswerParser::widen_window() {
    n_bytes_widened_ += whole_.size();
    window_ = whole_;
    shown_ = streamed_;
    shown_.content.insert(0, prefill_.content);
    shown_.reasoning_content.insert(0, prefill_.reasoning_content);
    shorten_at_ = kShortenStepBytes;
}

AnswerPlace AnswerParser::place_of(const common_chat_input& input) {
    const std::string text = chat_->parser.generation_prompt.text + input.text;
    n_bytes_parsed_ += text.size();
    AnswerPlace place;
    run_nested(bracket_depth(input.text), [&] { place = find_place(chat_->parser.parser, tries_, text); });
    return place;
}

// After the window was parsed: whether the next tokens can do without, or with a shorter window.
void AnswerParser::look_ahead(bool is_text) {
    const bool is_long = window_.size() >= shorten_at_;
    if (!is_text && !is_long) {
        return;
    }
    AnswerPlace place = place_of(window_);
    if (is_long && place.is_readable) {
        int n_elided = 0;
        while (n_elided < kElisionsAtOnce && window_.size() >= kShortenStepBytes && shorten_window(place)) {
            ++n_elided;
            place = place_of(window_);
        }
        shorten_at_ = window_.size() + (n_elided > 0 ? kShortenStepBytes / 2 : window_.size() / 4);
    }
    if (is_text && place.open) {
        open_run(*place.open);
    }
}

void AnswerParser::open_run(const OpenText& open) {
    run_ = TextRun::open(open, tries_, chat_->parser.generation_prompt.text + window_.text, read_);
    if (run_ && text_of(read_, {run_->kind(), 0}) != text_of(shown_, {run_->kind(), 0})) {
        run_.reset();  // something of it was taken back, so not all that comes adds to what is shown
    }
}

bool AnswerParser::shorten_window(const AnswerPlace& place) {
    const std::string& prompt = chat_->parser.generation_prompt.text;
    const std::vector<Stretch> stretches = find_elisions(place, prompt + window_.text, prompt.size());
    return std::any_of(stretches.begin(), stretches.end(), [&](const Stretch& stretch) {
        return try_without({stretch.begin - prompt.size(), stretch.end - prompt.size()}, place);
    });
}

// Takes the stretch out of the window if the parser then reads the same answer, that stretch left out, and comes to the
// same place.
bool AnswerParser::try_without(const Stretch& stretch, const AnswerPlace& place) {
    common_chat_input shorter = without(window_, stretch);
    auto now = try_parse(shorter);
    const auto gone = now ? left_out(read_, *now) : std::nullopt;
    if (!gone || shown_.tool_calls.size() != read_.tool_calls.size()) {
        return false;
    }
    std::string& shown = text_of(shown_, gone->field);
    if (shown.compare(0, gone->begin + gone->n_bytes, text_of(read_, gone->field), 0, gone->begin + gone->n_bytes) !=
        0) {
        return false;
    }
    if (!place_of(shorter).is_like(place)) {
        return false;
    }
    window_ = std::move(shorter);
    shown.erase(gone->begin, gone->n_bytes);
    read_ = std::move(*now);
    return true;
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
