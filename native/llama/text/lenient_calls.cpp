// LenientCalls: see the header.
#include "llama/text/lenient_calls.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <chat-peg-parser.h>

#include "llama/decoding/private_member.h"

namespace luce::llama {

// Alternatives are new parts of a grammar; only llama.cpp's builder can add some, and only to a grammar of its own.
struct AddParser {
    friend constexpr auto member_of(AddParser);
};
template struct PrivateMember<AddParser, &common_peg_arena::add_parser>;

namespace {

using Tags = common_chat_peg_builder;
using Id = common_peg_parser_id;
using Ids = std::vector<Id>;

// Adds parts to a grammar.
class Parts {
public:
    explicit Parts(common_peg_arena& grammar) : grammar_(grammar) {}

    Id add(common_peg_parser_variant part) { return (grammar_.*member_of(AddParser{}))(std::move(part)); }
    Id literal(std::string text) { return add(common_peg_literal_parser{std::move(text)}); }
    Id sequence(Ids parts) { return add(common_peg_sequence_parser{std::move(parts)}); }
    Id choice(Ids parts) { return add(common_peg_choice_parser{std::move(parts)}); }
    Id any_number_of(Id part) { return add(common_peg_repetition_parser{part, 0, -1}); }
    Id optional(Id part) { return add(common_peg_repetition_parser{part, 0, 1}); }
    Id followed_by(Id part) { return add(common_peg_and_parser{part}); }
    Id not_followed_by(Id part) { return add(common_peg_not_parser{part}); }
    Id atomic(Id part) { return add(common_peg_atomic_parser{part}); }
    Id tag(std::string name, Id part) { return add(common_peg_tag_parser{part, std::move(name)}); }
    Id space() { return add(common_peg_space_parser{}); }

private:
    common_peg_arena& grammar_;
};

Ids children_of(const common_peg_parser_variant& part) {
    return std::visit(
        [](const auto& parser) -> Ids {
            if constexpr (requires { parser.children; }) {
                return parser.children;
            } else if constexpr (requires { parser.child; }) {
                return {parser.child};
            } else {
                return {};
            }
        },
        part);
}

bool is_quoted(const std::string& text) { return text.size() > 2 && text.front() == '"' && text.back() == '"'; }

// A call that is one JSON object, as the strict grammar has it.
struct JsonCall {
    std::optional<Id> open, name, arguments, close;  // tags
    std::string name_key, arguments_key;             // with their quotes
    std::set<std::string> id_keys = {"\"id\""};
    std::string last_key;
    std::set<Id> seen;
};

class Loosener {
public:
    explicit Loosener(common_peg_arena& grammar) : grammar_(grammar), parts_(grammar) {}

    void loosen() {
        const size_t n_strict = grammar_.size();
        for (Id id = 0; id < n_strict; ++id) {
            loosen_values(id);
        }
        for (Id id = 0; id < n_strict; ++id) {
            if (is_tag(id, Tags::TOOL)) {
                loosen_parameters(id);
                loosen_json(id);
            }
        }
    }

private:
    bool is_tag(Id id, const char* name) const {
        const auto* tag = std::get_if<common_peg_tag_parser>(&grammar_.get(id));
        return tag != nullptr && tag->tag == name;
    }

    // What a tag is around, where the part is one, atomic or not.
    std::optional<Id> tagged(Id id, const char* name) const {
        const auto* atomic = std::get_if<common_peg_atomic_parser>(&grammar_.get(id));
        const Id tag = atomic == nullptr ? id : atomic->child;
        return is_tag(tag, name) ? std::optional(std::get<common_peg_tag_parser>(grammar_.get(tag)).child)
                                 : std::nullopt;
    }

    // Of a literal, else empty.
    std::string text_of(Id id) const {
        const auto* literal = std::get_if<common_peg_literal_parser>(&grammar_.get(id));
        return literal == nullptr ? "" : literal->literal;
    }

    // Parameters that the strict grammar wants in an order, or all of them: any of them, in any order, unknown ones
    // too.
    void loosen_parameters(Id tool) {
        Ids parameters;
        for (const Id id : below(tool)) {
            if (is_tag(id, Tags::TOOL_ARG)) {
                parameters.push_back(id);
            }
        }
        if (parameters.empty()) {
            return;
        }
        Ids openings;
        for (const Id parameter : parameters) {
            if (const auto open = first_below(parameter, Tags::TOOL_ARG_OPEN)) {
                openings.push_back(*open);
            }
        }
        if (const auto unknown = unknown_parameter(parameters.front(), openings)) {
            parameters.push_back(*unknown);
        }
        const Id any = parts_.any_number_of(parts_.sequence({parts_.space(), parts_.choice(parameters)}));
        takes_parameters_.clear();
        for (const Id id : below(tool)) {
            if (std::holds_alternative<common_peg_sequence_parser>(grammar_.get(id))) {
                replace_parameters(id, any);
            }
        }
        loosen_lookahead(tool);
    }

    // A text under any name, written like one that is known.
    std::optional<Id> unknown_parameter(Id known, const Ids& openings) {
        const Ids written = sequence_of(std::get<common_peg_tag_parser>(grammar_.get(known)).child);
        const auto open = written.empty() ? std::nullopt : tagged(written.front(), Tags::TOOL_ARG_OPEN);
        Ids head = open ? sequence_of(*open) : Ids();
        const auto name =
            std::ranges::find_if(head, [&](Id id) { return tagged(id, Tags::TOOL_ARG_NAME).has_value(); });
        const std::string end_of_name = head.end() - name > 1 ? text_of(*(name + 1)) : "";
        const std::optional<Id> close = first_below(known, Tags::TOOL_ARG_CLOSE);
        const std::string end = close ? text_of(*tagged(*close, Tags::TOOL_ARG_CLOSE)) : "";
        if (end_of_name.empty() || end.empty()) {
            return std::nullopt;
        }
        const Id any_name = parts_.add(common_peg_until_parser{{end_of_name}});
        const Id some_name = parts_.sequence({parts_.not_followed_by(*(name + 1)), any_name});
        *name = parts_.atomic(parts_.tag(Tags::TOOL_ARG_NAME, some_name));
        Ids parts = {parts_.not_followed_by(parts_.choice(openings)),
                     parts_.atomic(parts_.tag(Tags::TOOL_ARG_OPEN, parts_.sequence(head)))};
        std::copy_if(written.begin() + 1, written.end(), std::back_inserter(parts),
                     [&](Id id) { return !text_of(id).empty(); });
        parts.push_back(parts_.tag(Tags::TOOL_ARG_STRING_VALUE, parts_.add(common_peg_until_parser{{end}})));
        parts.push_back(parts_.atomic(*close));
        return parts_.tag(Tags::TOOL_ARG, parts_.sequence(parts));
    }

    std::optional<Id> first_below(Id id, const char* tag) const {
        const Ids all = below(id);
        const auto found = std::ranges::find_if(all, [&](Id part) { return is_tag(part, tag); });
        return found == all.end() ? std::nullopt : std::optional(*found);
    }

    // The parts of a sequence, else none.
    Ids sequence_of(Id id) const {
        const auto* sequence = std::get_if<common_peg_sequence_parser>(&grammar_.get(id));
        return sequence == nullptr ? Ids() : sequence->children;
    }

    // Of a sequence, the parts from the first parameter to the last.
    void replace_parameters(Id sequence, Id any) {
        Ids children = std::get<common_peg_sequence_parser>(grammar_.get(sequence)).children;
        const auto takes = [&](Id id) { return takes_parameters(id); };
        const auto first = std::ranges::find_if(children, takes);
        const auto last = std::find_if(children.rbegin(), children.rend(), takes).base();
        if (first == children.end() || !std::all_of(first, last, [&](Id id) { return takes(id) || is_space(id); })) {
            return;
        }
        *first = any;
        children.erase(first + 1, last);
        std::get<common_peg_sequence_parser>(grammar_.get(sequence)).children = std::move(children);
    }

    bool is_space(Id id) const {
        return std::holds_alternative<common_peg_space_parser>(grammar_.get(id)) ||
               std::holds_alternative<common_peg_epsilon_parser>(grammar_.get(id));
    }

    // Nothing but parameters.
    bool takes_parameters(Id id) {
        const auto [known, is_new] = takes_parameters_.try_emplace(id, is_tag(id, Tags::TOOL_ARG));
        const auto& part = grammar_.get(id);
        const bool is_group = std::holds_alternative<common_peg_sequence_parser>(part) ||
                              std::holds_alternative<common_peg_choice_parser>(part) ||
                              std::holds_alternative<common_peg_repetition_parser>(part) ||
                              std::holds_alternative<common_peg_rule_parser>(part);
        if (!is_new || known->second || !is_group) {
            return known->second;
        }
        const Ids children = children_of(part);
        const bool takes =
            std::ranges::any_of(children, [&](Id child) { return takes_parameters(child); }) &&
            std::ranges::all_of(children, [&](Id child) { return takes_parameters(child) || is_space(child); });
        return takes_parameters_[id] = takes;
    }

    // A name is whole where a parameter follows it, or the call's end.
    void loosen_lookahead(Id tool) {
        Ids ends;
        for (const Id id : below(tool)) {
            if (is_tag(id, Tags::TOOL_CLOSE)) {
                for (const Id inner : below(id)) {
                    if (!text_of(inner).empty()) {
                        ends.push_back(inner);
                    }
                }
            }
        }
        for (const Id id : below(tool)) {
            const auto* ahead = std::get_if<common_peg_and_parser>(&grammar_.get(id));
            if (ahead != nullptr && !text_of(ahead->child).empty() && !ends.empty() && ahead->child != ends.front()) {
                const Id follows = parts_.choice({ahead->child, ends.front()});
                std::get<common_peg_and_parser>(grammar_.get(id)).child = follows;
            }
        }
    }

    // A value that is no JSON is a text.
    void loosen_values(Id id) {
        if (!std::holds_alternative<common_peg_sequence_parser>(grammar_.get(id))) {
            return;
        }
        Ids children = std::get<common_peg_sequence_parser>(grammar_.get(id)).children;
        for (size_t n = 0; n + 1 < children.size(); ++n) {
            const auto value = tagged(children[n], Tags::TOOL_ARG_VALUE);
            const auto close = tagged(children[n + 1], Tags::TOOL_ARG_CLOSE);
            const std::string end = close ? text_of(*close) : "";
            const bool is_json = value && std::holds_alternative<common_peg_schema_parser>(grammar_.get(*value));
            if (is_json && !end.empty()) {
                children[n] = value_or_text(children[n], *close, end);
            }
        }
        std::get<common_peg_sequence_parser>(grammar_.get(id)).children = std::move(children);
    }

    // What begins like an object or a list is read as one, as it comes; of anything else it is known at its end whether
    // it is JSON.
    Id value_or_text(Id value, Id close, const std::string& end) {
        const Id opens = parts_.choice({opens_with("{", "\"}"), opens_with("[", "\"{[]-0123456789tfn")});
        const Id container = parts_.sequence({parts_.followed_by(opens), value});
        const Id scalar = parts_.atomic(parts_.sequence({value, parts_.followed_by(close)}));
        const Id text = parts_.tag(Tags::TOOL_ARG_STRING_VALUE, parts_.add(common_peg_until_parser{{end}}));
        return parts_.choice(
            {container, parts_.sequence({parts_.not_followed_by(opens), parts_.choice({scalar, text})})});
    }

    Id opens_with(const char* bracket, std::string_view next) {
        common_peg_chars_parser first = {"", {}, false, 1, 1};
        for (const char c : next) {
            first.ranges.push_back({static_cast<uint32_t>(c), static_cast<uint32_t>(c)});
        }
        return parts_.sequence({parts_.literal(bracket), parts_.space(), parts_.add(first)});
    }

    void loosen_json(Id tool) {
        JsonCall call;
        look_at(tool, call);
        if (call.name_key.empty() || call.arguments_key.empty() || !call.open || !call.close ||
            !grammar_.has_rule("json-value") || !grammar_.has_rule("json-string")) {
            return;
        }
        if (text_of(std::get<common_peg_tag_parser>(grammar_.get(*call.open)).child) != "{") {
            return;
        }
        const Id strict = std::get<common_peg_tag_parser>(grammar_.get(tool)).child;
        const Id lenient = parts_.choice({strict, object_of(call), wrapped_object_of(call)});
        std::get<common_peg_tag_parser>(grammar_.get(tool)).child = lenient;
    }

    void look_at(Id id, JsonCall& call) const {
        if (!call.seen.insert(id).second && children_of(grammar_.get(id)).size() > 0) {
            return;
        }
        if (const std::string text = text_of(id); is_quoted(text)) {
            call.last_key = text;
        }
        if (is_tag(id, Tags::TOOL_OPEN)) {
            call.open = id;
        } else if (is_tag(id, Tags::TOOL_CLOSE)) {
            call.close = id;
        } else if (is_tag(id, Tags::TOOL_NAME)) {
            call.name = id;
            call.name_key = std::exchange(call.last_key, "");
            return;
        } else if (is_tag(id, Tags::TOOL_ARGS)) {
            call.arguments = id;
            call.arguments_key = std::exchange(call.last_key, "");
            return;
        } else if (is_tag(id, Tags::TOOL_ID) && !call.last_key.empty()) {
            call.id_keys.insert(call.last_key);
            return;
        }
        for (const Id child : children_of(grammar_.get(id))) {
            look_at(child, call);
        }
    }

    Id keys(const std::set<std::string>& names) {
        Ids found;
        for (const std::string& name : names) {
            found.push_back(parts_.literal(name));
        }
        return parts_.sequence({parts_.choice(found), parts_.space(), parts_.literal(":"), parts_.space()});
    }

    Id comma() { return parts_.sequence({parts_.space(), parts_.literal(","), parts_.space()}); }

    // The name and the arguments, once each and in any order, and whatever else.
    Id members_of(const JsonCall& call) {
        const Id quote = parts_.literal("\"");
        const Id name_key = keys({call.name_key});
        const Id arguments_key = keys({call.arguments_key, "\"arguments\"", "\"parameters\"", "\"input\""});
        const Id name = parts_.sequence({name_key, parts_.atomic(parts_.sequence({quote, *call.name, quote}))});
        const Id arguments = parts_.sequence({arguments_key, *call.arguments});

        const Id id_text = parts_.tag(Tags::TOOL_ID, parts_.add(common_peg_string_parser{'"'}));
        const Id id = parts_.sequence({keys(call.id_keys), parts_.atomic(parts_.sequence({quote, id_text, quote}))});
        const Id text = grammar_.get_rule("json-string");
        const Id other =
            parts_.sequence({parts_.not_followed_by(parts_.choice({name_key, arguments_key})), text, parts_.space(),
                             parts_.literal(":"), parts_.space(), grammar_.get_rule("json-value")});
        const Id extra = parts_.choice({id, other});
        const Id before = parts_.any_number_of(parts_.sequence({extra, comma()}));
        const Id behind = parts_.any_number_of(parts_.sequence({comma(), extra}));
        const Id named =
            parts_.sequence({name, behind, parts_.optional(parts_.sequence({comma(), arguments, behind}))});
        const Id named_last = parts_.sequence({arguments, behind, comma(), name, behind});
        return parts_.sequence({before, parts_.choice({named, named_last})});
    }

    Id object_of(const JsonCall& call) {
        return parts_.sequence(
            {parts_.atomic(*call.open), parts_.space(), members_of(call), parts_.space(), parts_.atomic(*call.close)});
    }

    // As OpenAI's API has it.
    Id wrapped_object_of(const JsonCall& call) {
        const Id type = parts_.sequence({keys({"\"type\""}), parts_.literal("\"function\""), comma()});
        return parts_.sequence({parts_.atomic(*call.open), parts_.space(), parts_.optional(type),
                                keys({"\"function\""}), parts_.literal("{"), parts_.space(), members_of(call),
                                parts_.space(), parts_.literal("}"), parts_.space(), parts_.atomic(*call.close)});
    }

    // A part and all that it refers to, once each.
    Ids below(Id id) const {
        Ids found = {id};
        std::set<Id> seen = {id};
        for (size_t at = 0; at < found.size(); ++at) {
            for (const Id child : children_of(grammar_.get(found[at]))) {
                if (seen.insert(child).second) {
                    found.push_back(child);
                }
            }
        }
        return found;
    }

    common_peg_arena& grammar_;
    Parts parts_;
    std::map<Id, bool> takes_parameters_;  // of the tool that is looked at
};

}  // namespace

void take_lenient_calls(common_peg_arena& grammar) { Loosener(grammar).loosen(); }

}  // namespace luce::llama
