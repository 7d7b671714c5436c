// LoopSource: what one turn of a template's loop can read and change, told from its source. Rather too much than too
// little: a turn that finds all of this as another one found it does what that one did. Knows no values.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <jinja/runtime.h>

namespace luce::llama {

// A variable, and a member of the object that it holds.
using MemberName = std::pair<std::string, std::string>;

// A template's macros.
struct MacroSource {
    explicit MacroSource(const jinja::program& program);

    std::vector<const jinja::macro_statement*> all;
    std::set<std::string> names;                         // that stand for one macro and never for anything else
    bool has_blocks = false;                             // that are given to macros
    std::set<const jinja::for_statement*> direct_loops;  // whose text goes into the prompt as it is
};

struct LoopSource {
    LoopSource(const jinja::for_statement& loop, const MacroSource& macros);

    bool is_known = true;  // false: it can do something that does not follow from what is told here
    bool is_direct;        // its text goes into the prompt as it is
    std::set<std::string> names;
    std::set<std::string> arrays;        // of which single elements are read
    std::set<MemberName> members;        // objects of which these members are read
    std::set<std::string> loop_members;  // of `loop`
    std::set<std::string> set_names;
    std::set<MemberName> set_members;
};

}  // namespace luce::llama
