// Elision: a stretch in the middle of an answer's long text field that the parser does not have to see again.
//
// llama.cpp parses the whole answer anew for each token. But while the parser reads a long text (content, reasoning, a
// string in a tool call's arguments), what it does next depends on the last bytes only, not on the middle. So the
// middle is left out of what is parsed. This file finds such a stretch by comparing the input with the parsed field;
// the caller proves it by parsing without it. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace luce::llama {

// How a field shows the input's bytes.
enum class FieldSpelling {
    plain,         // as they are
    json_escaped,  // escaped, inside a string of the JSON that the field is
};

struct Elision {
    size_t input_begin;
    size_t input_end;
    size_t field_begin;
    size_t field_end;
};

// field_is_json: only stretches that leave its nesting as it is: inside one string, or from one comma to another of
// the same list or object.
std::optional<Elision> find_elision(std::string_view input, std::string_view field, FieldSpelling spelling,
                                    bool field_is_json);

}  // namespace luce::llama
