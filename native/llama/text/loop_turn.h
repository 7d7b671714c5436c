// LoopTurn: what one turn of a template's loop found and did, and whether another turn would find the same. Knows
// nothing of who keeps it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <jinja/runtime.h>

#include "llama/text/loop_source.h"
#include "llama/text/template_values.h"

namespace luce::llama {

// What a turn found and did. Immutable.
struct LoopTurn {
    struct Element {
        size_t array;  // of the loop's source
        int64_t index;
        jinja::value value;
    };
    jinja::value item;
    std::vector<jinja::value> found;  // by the plan: names, arrays, members, loop's members; null: an array of which
                                      // `elements` were read
    std::vector<bool> is_of_object;   // by the plan's members: whether `found` has the member of an object that may
                                      // change, or else what is in the object's place
    std::vector<Element> elements;
    jinja::value text;
    std::vector<jinja::value> set_names;    // null: not set
    std::vector<jinja::value> set_members;  // null: not set
    size_t n_bytes = 0;
};

// How a loop's source is looked up. `found` is in this order.
struct LoopPlan {
    LoopPlan(const LoopSource& source, const MacroSource& macro_source);

    struct Member {
        jinja::value object;
        jinja::value name;
    };
    bool is_known;
    std::vector<jinja::value> names;
    std::vector<jinja::value> arrays;
    std::vector<Member> members;
    std::vector<std::string> loop_members;
    std::vector<jinja::value> set_names;
    std::vector<Member> set_members;
    std::set<std::string> macros;
    // Whether what turns find follows from the items up to the next one, and from what stood before.
    mutable std::atomic<bool> allows_runs;

    // A loop whose turns never come again (it counts from the end, say) is not worth keeping.
    mutable std::atomic<uint64_t> n_kept = 0;
    mutable std::atomic<uint64_t> n_reused = 0;

    // Whether no two names stand for one of these objects, where members are set. By `members`; null: none.
    bool has_own_objects(const std::vector<const jinja::value_t*>& objects) const;
};

// Of a name: what it stands for; null for a function that is no macro of this name.
jinja::value value_of(const jinja::context& scope, const jinja::value& name, const LoopPlan& plan);
// The value, if it is an object that may still change.
jinja::value_object_t* changeable_object(const jinja::value& value);
// A member, and null where its name is that of a function of all objects.
jinja::value member_of(const jinja::value_object_t& object, const jinja::value& name);
jinja::value element_of(const jinja::value& array, int64_t index);
// What `loop` has in the turn for item `i`.
jinja::value loop_member(const std::string& name, const std::vector<jinja::value>& items, size_t i);
const jinja::value& undefined();

// Whether a turn that found this would find the same for item `i` now.
bool holds(const LoopTurn& turn, const LoopPlan& plan, const jinja::context& scope,
           const std::vector<jinja::value>& items, size_t i);
// The same for one element that it read.
bool holds(const LoopTurn::Element& element, const LoopPlan& plan, const jinja::context& scope);

// Sets what the turns have set, one behind the other. REQUIRES: the plan allows runs, or it is one turn.
void apply_changes(const std::shared_ptr<const LoopTurn>* turns, size_t n_turns, const LoopPlan& plan,
                   jinja::context& scope);

}  // namespace luce::llama
