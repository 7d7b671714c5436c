// AnswerFormat: see the header.
#include "llama/text/answer_format.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <utility>
#include <variant>

#include <chat-peg-parser.h>

#include "llama/text/deep_stack.h"

namespace luce::llama {

namespace {

using Tags = common_chat_peg_builder;

std::unique_ptr<common_chat_peg_mapper> mapper_of(common_chat_format format, common_chat_msg& message) {
    switch (format) {
        case COMMON_CHAT_FORMAT_PEG_GEMMA4: return std::make_unique<common_chat_peg_gemma4_mapper>(message);
        case COMMON_CHAT_FORMAT_PEG_MINIMAX_M3: return std::make_unique<common_chat_peg_minimax_m3_mapper>(message);
        default: return std::make_unique<common_chat_peg_mapper>(message);
    }
}

bool is_of_call(const std::string& tag) {
    return tag == Tags::TOOL_ID || tag == Tags::TOOL_NAME || tag == Tags::TOOL_ARGS || tag == Tags::TOOL_ARG_NAME ||
           tag == Tags::TOOL_ARG_VALUE || tag == Tags::TOOL_ARG_STRING_VALUE;
}

bool holds_parts_of_call(const common_peg_ast_arena& nodes, const common_peg_ast_node& node) {
    return std::ranges::any_of(node.children, [&](common_peg_ast_id id) {
        return is_of_call(nodes.get(id).tag) || holds_parts_of_call(nodes, nodes.get(id));
    });
}

// Arguments that are no object, for clients: an object that was encoded twice, nothing (null), or what was written.
std::string odd_arguments(std::string written) {
    const common_json value = common_json::parse_no_throw(written);
    if (value.is_null() && !value.is_discarded()) {
        return "{}";
    }
    if (!value.is_string()) {
        return written;
    }
    std::string inner = value.get<std::string>();
    return common_json::parse_no_throw(inner).is_object() ? inner : written;
}

// Calls, node by node. Of one there may be an id, or the arguments, before its name.
class CallCount {
public:
    void pass(const common_peg_ast_node& node) {
        is_unnamed_ = is_unnamed_ || node.tag == Tags::TOOL_OPEN;
        if (node.tag == Tags::TOOL_NAME) {
            ++n_named_;
            is_unnamed_ = false;
        }
    }

    size_t n_named() const { return n_named_; }
    size_t n_begun() const { return n_named_ + is_unnamed_; }

private:
    size_t n_named_ = 0;
    bool is_unnamed_ = true;
};

// llama.cpp leaves out arguments that are no object, and makes a call without any of it.
void keep_odd_arguments(const common_peg_ast_arena& nodes, const common_peg_parse_result& result,
                        common_chat_msg& message) {
    CallCount calls;
    nodes.visit(result, [&](const common_peg_ast_node& node) {
        calls.pass(node);
        const size_t n_calls = calls.n_begun();
        if (node.tag != Tags::TOOL_ARGS || node.is_partial || n_calls == 0 || n_calls > message.tool_calls.size()) {
            return;
        }
        const size_t begin = node.text.find_first_not_of(" \n\r\t");
        if (begin != std::string_view::npos && node.text[begin] != '{' && !holds_parts_of_call(nodes, node)) {
            message.tool_calls[n_calls - 1].arguments = odd_arguments(std::string(node.text.substr(begin)));
        }
    });
}

// Bytes before the output, in what was parsed.
std::vector<AnswerPart> parts_of(const common_peg_ast_arena& nodes, const common_peg_parse_result& result,
                                 size_t n_before) {
    std::vector<AnswerPart> parts;
    CallCount calls;
    nodes.visit(result, [&](const common_peg_ast_node& node) {
        calls.pass(node);
        const bool is_content = node.tag == Tags::CONTENT;
        if (!is_content && node.tag != Tags::REASONING && !is_of_call(node.tag)) {
            return;
        }
        const auto kind = is_content                    ? AnswerPart::Kind::content
                          : node.tag == Tags::REASONING ? AnswerPart::Kind::reasoning
                                                        : AnswerPart::Kind::call;
        parts.push_back({kind, std::max(node.start, n_before) - n_before, std::max(node.end, n_before) - n_before,
                         is_content || node.tag == Tags::REASONING ? node.sanitized_text() : "",
                         kind == AnswerPart::Kind::call ? calls.n_begun() : calls.n_named()});
    });
    // Of a call's parts the innermost: between them there may be more than marks.
    const auto holds_next = [&](const AnswerPart& part) {
        return part.kind == AnswerPart::Kind::call && &part != &parts.back() && (&part + 1)->begin < part.end;
    };
    std::vector<AnswerPart> innermost;
    std::ranges::copy_if(parts, std::back_inserter(innermost), std::not_fn(holds_next));
    return innermost;
}

// Whether there is a call's name on a way that led nowhere, where the output is read as something else by now.
bool has_lost_name(const common_peg_ast_arena& nodes, const common_peg_parse_result& result) {
    std::set<size_t> begun;
    std::vector<std::pair<size_t, size_t>> texts;
    nodes.visit(result, [&](const common_peg_ast_node& node) {
        if (node.tag == Tags::TOOL_NAME) {
            begun.insert(node.start);
        } else if (node.tag == Tags::CONTENT) {
            texts.emplace_back(node.start, node.end);
        }
    });
    for (common_peg_ast_id id = 0; id < nodes.size(); ++id) {
        const common_peg_ast_node& node = nodes.get(id);
        const auto holds = [&](const auto& text) { return text.first <= node.start && node.start < text.second; };
        if (node.tag == Tags::TOOL_NAME && !node.is_partial && !begun.contains(node.start) &&
            (!result.need_more_input() || std::ranges::any_of(texts, holds))) {
            return true;
        }
    }
    return false;
}

const common_peg_arena& grammar_of(const common_chat_parser_params& format) {
    static const common_peg_arena content_only =
        build_chat_peg_parser([](common_chat_peg_builder& p) { return p.content(p.rest()); });
    return format.parser.empty() ? content_only : format.parser;
}

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter_or_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// A name, a quoted one, or a piece of JSON.
bool is_word(std::string_view text) {
    const bool has_letters = std::ranges::any_of(text, is_letter_or_digit);
    const bool is_quoted = text.size() > 2 && text.front() == '"' && text.back() == '"';
    return !has_letters ? text.find_first_not_of("{}[],:\"' \n+-.") == std::string_view::npos
                        : std::ranges::all_of(is_quoted ? text.substr(1, text.size() - 2) : text, [](char c) {
                              return is_letter_or_digit(c) || c == '_' || c == '-' || c == '.';
                          });
}

// word, name="word" or name="12", perhaps cut off in its value.
size_t n_bytes_of_attribute(std::string_view text) {
    const auto n_name = static_cast<size_t>(std::ranges::find_if_not(text, is_lower) - text.begin());
    const bool is_word = n_name == text.size() || !is_letter_or_digit(text[n_name]);
    if (n_name == 0 || !text.substr(n_name).starts_with("=\"")) {
        return is_word ? n_name : 0;
    }
    const size_t begin = n_name + 2;
    const std::string_view value = text.substr(begin, text.find('"', begin) - begin);
    const bool is_value = std::ranges::all_of(value, is_lower) || std::ranges::all_of(value, is_digit);
    return is_value ? std::min(begin + value.size() + 1, text.size()) : 0;
}

}  // namespace

void open_grammar(common_peg_arena& grammar) {
    std::set<common_peg_parser_id> alternatives;  // to what is none
    for (common_peg_parser_id id = 0; id < grammar.size(); ++id) {
        if (const auto* choice = std::get_if<common_peg_choice_parser>(&grammar.get(id))) {
            alternatives.insert(choice->children.begin(), choice->children.end());
        }
    }
    for (common_peg_parser_id id = 0; id < grammar.size(); ++id) {
        common_peg_parser_variant& part = grammar.get(id);
        const auto* rule = std::get_if<common_peg_rule_parser>(&part);
        if (std::holds_alternative<common_peg_end_parser>(part)) {
            part = common_peg_epsilon_parser{};
        } else if (rule != nullptr && rule->trigger && !alternatives.contains(id)) {
            part = common_peg_repetition_parser{rule->child, 0, 1};
        }
    }
}

AnswerReading read_answer(const common_chat_parser_params& format, const common_chat_input& output) {
    common_chat_input input = output;
    input.prepend(format.generation_prompt);
    const size_t n_before = format.generation_prompt.size();
    AnswerReading reading;
    const auto read = [&] {
        common_peg_parse_context context(std::move(input.text), std::move(input.tokens), COMMON_PEG_PARSE_FLAG_LENIENT);
        const common_peg_parse_result result = grammar_of(format).parse(context);
        reading.is_readable = !result.fail();
        reading.is_open = result.need_more_input();
        if (!reading.is_readable) {
            return;
        }
        mapper_of(format.format, reading.message)->from_ast(context.ast, result);
        keep_odd_arguments(context.ast, result, reading.message);
        reading.parts = parts_of(context.ast, result, n_before);
        reading.end = std::max(result.end, n_before) - n_before;
        reading.has_lost_call = has_lost_name(context.ast, result);
    };
    try {
        run_nested(bracket_depth(output.text), read);
    } catch (const std::exception&) {
        return {};  // deeper than any stack, or arguments that are no text
    }
    return reading;
}

FormatMarks::FormatMarks(const common_peg_arena& grammar) {
    std::set<std::string> found;
    for (common_peg_parser_id id = 0; id < grammar.size(); ++id) {
        if (const auto* literal = std::get_if<common_peg_literal_parser>(&grammar.get(id))) {
            found.insert(literal->literal);
        }
    }
    found.erase("");
    marks_.assign(found.begin(), found.end());
    std::ranges::sort(marks_, std::ranges::greater{}, &std::string::size);
}

FormatMarks FormatMarks::without_words() const {
    FormatMarks tags;
    std::ranges::copy_if(marks_, std::back_inserter(tags.marks_), std::not_fn(is_word));
    return tags;
}

size_t FormatMarks::n_bytes_of_mark(std::string_view text) const {
    const auto mark = std::ranges::find_if(marks_, [&](const std::string& mark) { return text.starts_with(mark); });
    if (mark != marks_.end()) {
        return mark->size();
    }
    return !text.empty() && std::isspace(static_cast<unsigned char>(text.front())) ? 1 : 0;
}

std::string_view FormatMarks::without_marks(std::string_view text) const {
    for (size_t n = n_bytes_of_mark(text); n > 0; n = n_bytes_of_mark(text)) {
        text.remove_prefix(n);
    }
    return text;
}

bool FormatMarks::may_be_all_of(std::string_view text) const {
    const auto is_begun = [&] {
        return std::ranges::any_of(marks_, [&](const std::string& mark) { return mark.starts_with(text); });
    };
    while (!text.empty() && !is_begun()) {
        const size_t n = n_bytes_of_mark(text);
        if (n == 0) {
            return false;
        }
        text.remove_prefix(n);
    }
    return true;
}

std::string_view FormatMarks::foreign_in(std::string_view text) const {
    std::string_view foreign;
    for (text = without_marks(text); !text.empty(); text = without_marks(text)) {
        size_t n = n_bytes_of_attribute(text);
        if (n == 0) {
            const auto word_end = std::ranges::find_if_not(text, is_letter_or_digit);
            n = std::max<size_t>(1, static_cast<size_t>(word_end - text.begin()));
            const char* const begin = foreign.empty() ? text.data() : foreign.data();
            foreign = {begin, static_cast<size_t>(text.data() + n - begin)};
        }
        text.remove_prefix(n);
    }
    return foreign;
}

}  // namespace luce::llama
