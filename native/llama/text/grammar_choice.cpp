// grammar_choice: see the header.
#include "llama/text/grammar_choice.h"

#include <algorithm>
#include <functional>

namespace luce::llama {

namespace {

constexpr const char* kPrefixOfSecond = "by-schema-";
constexpr std::string_view kSchemaRules = "luce-";  // the caller's own, which keep their names

bool is_name_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

// Past what ends with `end` and may hold escapes; `at` is behind its opening bracket.
size_t behind(std::string_view text, size_t at, char end) {
    while (at < text.size() && text[at] != end) {
        at += text[at] == '\\' ? 2 : 1;
    }
    return at < text.size() ? at + 1 : text.size();
}

// What is no rule's name is skipped: literals, sets of characters, counts of repetitions, tokens, comments.
size_t behind_opaque(std::string_view text, size_t at) {
    switch (text[at]) {
        case '"': return behind(text, at + 1, '"');
        case '[': return behind(text, at + 1, ']');
        case '{': return behind(text, at + 1, '}');
        case '<': return behind(text, at + 1, '>');
        case '#': return std::min(text.find('\n', at), text.size());
        default: return at + 1;
    }
}

std::string name_of_second(std::string_view name) {
    return name.starts_with(kSchemaRules) ? std::string(name) : kPrefixOfSecond + std::string(name);
}

std::string renamed(std::string_view grammar, const std::function<std::string(std::string_view)>& name) {
    std::string result;
    for (size_t at = 0; at < grammar.size();) {
        size_t end = at;
        while (end < grammar.size() && is_name_character(grammar[end])) {
            ++end;
        }
        if (end > at) {
            result += name(grammar.substr(at, end - at));
        } else {
            end = behind_opaque(grammar, at);
            result.append(grammar.substr(at, end - at));
        }
        at = end;
    }
    return result;
}

}  // namespace

std::string grammar_choice(const std::string& first, const std::string& second) {
    const std::string of_first =
        renamed(first, [](std::string_view name) { return std::string(name == "root" ? kFirstRoot : name); });
    const std::string of_second = renamed(second, name_of_second);
    return std::string("root ::= ") + kFirstRoot + " | " + kPrefixOfSecond + "root\n" + of_first + "\n" + of_second;
}

std::string grammar_after(std::string_view text, const std::string& grammar) {
    std::string literal;
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            literal += '\\';
        }
        literal += c == '\n' ? std::string("\\n") : c == '\r' ? std::string("\\r") : std::string(1, c);
    }
    const std::string renamed_grammar = renamed(grammar, name_of_second);
    return "root ::= \"" + literal + "\" " + kPrefixOfSecond + "root\n" + renamed_grammar;
}

}  // namespace luce::llama
