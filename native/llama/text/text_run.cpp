// TextRun: see the header.
#include "llama/text/text_run.h"

#include <algorithm>

#include <chat-peg-parser.h>
#include <common/unicode.h>

namespace luce::llama {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The field that these tags make of a text; nothing where they make more of it than that.
std::optional<AnswerDelta::Kind> kind_of(const std::vector<std::string_view>& tags) {
    using Tags = common_chat_peg_builder;
    const bool has_plain_frame = !tags.empty() && std::all_of(tags.begin(), tags.end() - 1, [](std::string_view tag) {
        return tag == Tags::REASONING_BLOCK;
    });
    if (has_plain_frame && tags.back() == Tags::CONTENT) {
        return AnswerDelta::Kind::content;
    }
    if (has_plain_frame && tags.back() == Tags::REASONING) {
        return AnswerDelta::Kind::reasoning;
    }
    return std::nullopt;
}

}  // namespace

std::optional<TextRun> TextRun::open(const OpenText& text, DelimiterTries& tries, std::string_view input,
                                     const common_chat_msg& message) {
    const auto kind = kind_of(text.tags);
    if (!kind) {
        return std::nullopt;
    }
    TextRun run(*kind);
    if (text.until != nullptr) {
        run.delimiters_ = &tries.of(*text.until);
        for (const std::string& delimiter : text.until->delimiters) {
            if (!delimiter.empty()) {
                run.may_end_[static_cast<unsigned char>(delimiter[0])] = true;
            }
        }
    } else {
        run.may_end_[static_cast<unsigned char>(text.quoted->delimiter)] = run.may_end_['\\'] = true;
    }
    // The proof that the field is this text and goes on with it.
    const auto shown = run.shown(input.substr(text.begin));
    if (!shown || shown->empty() || !std::string_view(message.*run.field()).ends_with(*shown)) {
        return std::nullopt;
    }
    return run;
}

std::optional<std::string> TextRun::pass(std::string_view bytes) const {
    std::string shown;
    shown.reserve(bytes.size());
    for (size_t at = 0; at < bytes.size();) {
        const utf8_parse_result character = common_parse_utf8_codepoint(bytes, at);
        if (character.status == utf8_parse_result::SUCCESS) {
            if (may_end_[static_cast<unsigned char>(bytes[at])] &&
                (delimiters_ == nullptr || delimiters_->check_at(bytes, at) != common_trie::NO_MATCH)) {
                return std::nullopt;
            }
            shown.append(bytes.substr(at, character.bytes_consumed));
        } else if (character.status == utf8_parse_result::INVALID && delimiters_ != nullptr) {
            shown.append(kReplacement);
        } else {
            return std::nullopt;
        }
        at += character.bytes_consumed;
    }
    return shown;
}

std::optional<std::string> TextRun::shown(std::string_view bytes) const {
    return delimiters_ == nullptr ? std::optional(std::string(bytes)) : pass(bytes);
}

std::string common_chat_msg::* TextRun::field() const {
    return kind_ == AnswerDelta::Kind::reasoning ? &common_chat_msg::reasoning_content : &common_chat_msg::content;
}

}  // namespace luce::llama
