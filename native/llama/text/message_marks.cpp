// find_message_marks: see the header.
#include "llama/text/message_marks.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

namespace luce::llama {

namespace {

using Delimiters = std::vector<common_chat_msg_delimiter>;

MarkRole role_of(common_chat_role role) {
    switch (role) {
        case COMMON_CHAT_ROLE_SYSTEM: return MarkRole::System;
        case COMMON_CHAT_ROLE_ASSISTANT: return MarkRole::Assistant;
        case COMMON_CHAT_ROLE_USER: return MarkRole::User;
        case COMMON_CHAT_ROLE_TOOL: return MarkRole::Tool;
        case COMMON_CHAT_ROLE_UNKNOWN: return MarkRole::Unknown;
    }
    return MarkRole::Unknown;
}

// llama.cpp finds delimiters for the user and the assistant only. The other roles of a template whose messages all
// begin with one special token are read from what follows it.
MarkRole role_after(std::string_view text) {
    size_t n = 0;
    while (n < text.size() && (std::isalpha(static_cast<unsigned char>(text[n])) || text[n] == '_')) {
        ++n;
    }
    static const std::map<std::string_view, MarkRole> roles = {{"system", MarkRole::System},
                                                               {"developer", MarkRole::Developer},
                                                               {"user", MarkRole::User},
                                                               {"assistant", MarkRole::Assistant},
                                                               {"tool", MarkRole::Tool}};
    const auto found = roles.find(text.substr(0, n));
    return found == roles.end() ? MarkRole::Unknown : found->second;
}

// The longest delimiter that stands at the place: some continue others.
const common_chat_msg_delimiter* longest_at(const Delimiters& delimiters, std::string_view prompt, size_t byte) {
    const common_chat_msg_delimiter* best = nullptr;
    for (const common_chat_msg_delimiter& delimiter : delimiters) {
        const std::string& text = delimiter.delimiter;
        const bool here = !text.empty() && prompt.compare(byte, text.size(), text) == 0;
        if (here && (best == nullptr || text.size() > best->delimiter.size())) {
            best = &delimiter;
        }
    }
    return best;
}

// Where the token begins in the prompt.
size_t byte_of(const Vocabulary& vocabulary, const PromptTokens& tokens, size_t token) {
    const auto anchor = std::find_if(tokens.anchors.rbegin(), tokens.anchors.rend(),
                                     [&](const TokenAnchor& a) { return a.token <= token; });
    size_t byte = anchor == tokens.anchors.rend() ? 0 : anchor->byte;
    for (size_t at = anchor == tokens.anchors.rend() ? 0 : anchor->token; at < token; ++at) {
        byte += vocabulary.piece(tokens.ids[at], true).size();
    }
    return byte;
}

// Delimiters without a special token are found as llama.cpp does it, as a row of ids. One that does not stand where the
// pieces before it say, since the vocabulary adds or drops white space, is no mark.
void add_plain(const Vocabulary& vocabulary, const Delimiters& delimiters, std::string_view prompt,
               const PromptTokens& tokens, std::map<size_t, MessageMark>& marks) {
    common_chat_msg_delimiters plain;
    plain.delimiters = delimiters;
    plain.tokenize(vocabulary.text());
    std::erase_if(plain.delimiters, [](const auto& delimiter) { return delimiter.tokens.empty(); });
    for (const common_chat_msg_span& span : plain.split(tokens.ids).spans) {
        const size_t byte = byte_of(vocabulary, tokens, span.pos);
        if (byte <= prompt.size() && longest_at(delimiters, prompt, byte) != nullptr) {
            marks.emplace(span.pos, MessageMark{span.pos, byte, role_of(span.role)});
        }
    }
}

}  // namespace

std::vector<MessageMark> find_message_marks(const Vocabulary& vocabulary, const SpecialText& special,
                                            std::string_view prompt, const PromptTokens& tokens,
                                            const common_chat_msg_delimiters& delimiters) {
    std::map<llama_token, Delimiters> by_lead;
    for (const common_chat_msg_delimiter& delimiter : delimiters.delimiters) {
        by_lead[special.leading_structural(delimiter.delimiter)].push_back(delimiter);
    }
    std::map<size_t, MessageMark> marks;
    for (const TokenAnchor& anchor : tokens.anchors) {
        const auto group = by_lead.find(anchor.id);
        if (anchor.id == LLAMA_TOKEN_NULL || group == by_lead.end()) {
            continue;
        }
        const auto* delimiter = longest_at(group->second, prompt, anchor.byte);
        const std::string lead = llama_vocab_get_text(vocabulary.text(), anchor.id);
        const MarkRole role =
            delimiter != nullptr ? role_of(delimiter->role) : role_after(prompt.substr(anchor.byte + lead.size()));
        marks.emplace(anchor.token, MessageMark{anchor.token, anchor.byte, role});
    }
    if (by_lead.count(LLAMA_TOKEN_NULL) > 0) {
        add_plain(vocabulary, by_lead[LLAMA_TOKEN_NULL], prompt, tokens, marks);
    }
    std::vector<MessageMark> ordered;
    for (auto& [token, mark] : marks) {
        ordered.push_back(mark);
    }
    return ordered;
}

}  // namespace luce::llama
