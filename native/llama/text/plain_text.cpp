// PlainText: see the header.
#include "llama/text/plain_text.h"

#include <algorithm>
#include <type_traits>
#include <variant>
#include <vector>

#include <chat-peg-parser.h>
#include <common/unicode.h>

namespace luce::llama {

namespace {

// The parts of a grammar that one part refers to.
std::vector<common_peg_parser_id> children_of(const common_peg_arena& grammar, const common_peg_parser_variant& part) {
    return std::visit(
        [&](const auto& parser) -> std::vector<common_peg_parser_id> {
            if constexpr (requires { parser.children; }) {
                return parser.children;
            } else if constexpr (requires { parser.child; }) {
                return {parser.child};
            } else if constexpr (std::is_same_v<std::decay_t<decltype(parser)>, common_peg_ref_parser>) {
                return {grammar.get_rule(parser.name)};
            } else {
                return {};
            }
        },
        part);
}

// Where these come next, not every character goes on with the text.
bool restricts_text(const common_peg_parser_variant& part) {
    return std::holds_alternative<common_peg_string_parser>(part) ||
           std::holds_alternative<common_peg_chars_parser>(part) ||
           std::holds_alternative<common_peg_gbnf_parser>(part);
}

}  // namespace

PlainText::PlainText(const common_peg_arena& grammar, AnswerDelta::Kind kind) {
    const char* const name =
        kind == AnswerDelta::Kind::content ? common_chat_peg_builder::CONTENT : common_chat_peg_builder::REASONING;
    std::set<common_peg_parser_id> seen;
    std::vector<common_peg_parser_id> left;
    const auto reach = [&](common_peg_parser_id id) {
        if (seen.insert(id).second) {
            left.push_back(id);
        }
    };
    for (common_peg_parser_id id = 0; id < grammar.size(); ++id) {
        const auto* tag = std::get_if<common_peg_tag_parser>(&grammar.get(id));
        if (tag != nullptr && tag->tag == name) {
            reach(tag->child);
        }
    }
    while (!left.empty()) {
        const common_peg_parser_variant& part = grammar.get(left.back());
        left.pop_back();
        note_part(part);
        for (const common_peg_parser_id child : children_of(grammar, part)) {
            reach(child);
        }
    }
}

void PlainText::note_part(const common_peg_parser_variant& part) {
    is_free_ = is_free_ && !restricts_text(part);
    if (const auto* until = std::get_if<common_peg_until_parser>(&part)) {
        for (const std::string& delimiter : until->delimiters) {
            words_.insert(delimiter);
            delimiters_.insert(delimiter);
            longest_delimiter_ = std::max(longest_delimiter_, delimiter.size());
        }
    }
}

std::optional<size_t> PlainText::scan(std::string_view bytes) const {
    size_t n_read = 0;
    while (n_read < bytes.size()) {
        switch (delimiters_.check_at(bytes, n_read)) {
            case common_trie::COMPLETE_MATCH: return std::nullopt;
            case common_trie::PARTIAL_MATCH: return n_read;
            case common_trie::NO_MATCH: n_read += common_parse_utf8_codepoint(bytes, n_read).bytes_consumed; break;
        }
    }
    return n_read;
}

bool PlainText::ends_in_delimiter(std::string_view text) const {
    const size_t n_looked_at = std::min(text.size(), longest_delimiter_);
    for (size_t at = text.size() - n_looked_at; at < text.size(); ++at) {
        if (delimiters_.check_at(text, at) != common_trie::NO_MATCH) {
            return true;
        }
    }
    return false;
}

}  // namespace luce::llama
