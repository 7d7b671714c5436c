// LoopTurn: see the header.
#include "llama/text/loop_turn.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace luce::llama {

namespace {

jinja::value text_value(const std::string& text) { return jinja::mk_val<jinja::value_string>(text); }

std::vector<jinja::value> text_values(const std::set<std::string>& texts) {
    std::vector<jinja::value> values;
    std::ranges::transform(texts, std::back_inserter(values), text_value);
    return values;
}

std::vector<LoopPlan::Member> member_values(const std::set<MemberName>& members) {
    std::vector<LoopPlan::Member> values;
    for (const auto& [object, name] : members) {
        values.push_back({text_value(object), text_value(name)});
    }
    return values;
}

bool counts_from_end(const LoopSource& source) {
    return std::ranges::any_of(source.loop_members, [](const std::string& member) {
        return member == "length" || member == "revindex" || member == "revindex0";
    });
}

bool sets_members_of_set_names(const LoopSource& source) {
    return std::ranges::any_of(source.set_members,
                               [&](const MemberName& member) { return source.set_names.count(member.first) > 0; });
}

// Stands for a macro, which is what its name says.
const jinja::value& macro_mark() {
    static const jinja::value value = frozen_value(common_json::array());
    return value;
}

// Whether a turn that found this would find the same now.
class Comparison {
public:
    Comparison(const LoopTurn& turn, const LoopPlan& plan, const jinja::context& scope)
        : turn_(turn), plan_(plan), scope_(scope) {}

    bool holds(const std::vector<jinja::value>& items, size_t i) {
        return std::ranges::all_of(plan_.names,
                                   [&](const auto& name) { return is_next(value_of(scope_, name, plan_)); }) &&
               std::ranges::all_of(plan_.arrays, [&](const auto& name) { return holds_array(name); }) &&
               holds_members() &&
               std::ranges::all_of(plan_.loop_members,
                                   [&](const std::string& name) { return is_next(loop_member(name, items, i)); }) &&
               std::ranges::all_of(turn_.elements,
                                   [&](const auto& element) { return ::luce::llama::holds(element, plan_, scope_); });
    }

private:
    bool is_next(const jinja::value& now) {
        const jinja::value& kept = turn_.found[n_++];
        return kept != nullptr && now != nullptr && is_same(kept, now);
    }

    bool holds_array(const jinja::value& name) {
        const jinja::value now = value_of(scope_, name, plan_);
        if (turn_.found[n_] != nullptr) {
            return is_next(now);
        }
        ++n_;
        return now != nullptr && is_changeable(now) && jinja::is_val<jinja::value_array>(now);
    }

    bool holds_members() {
        std::vector<const jinja::value_t*> objects;
        for (size_t at = 0; at < plan_.members.size(); ++at) {
            const auto& [name, member] = plan_.members[at];
            const jinja::value base = value_of(scope_, name, plan_);
            const auto* object = changeable_object(base);
            if (turn_.is_of_object[at] != (object != nullptr) ||
                !is_next(object == nullptr ? base : member_of(*object, member))) {
                return false;
            }
            objects.push_back(object);
        }
        return plan_.has_own_objects(objects);
    }

    const LoopTurn& turn_;
    const LoopPlan& plan_;
    const jinja::context& scope_;
    size_t n_ = 0;
};

}  // namespace

LoopPlan::LoopPlan(const LoopSource& source, const MacroSource& macro_source)
    : is_known(source.is_known),
      names(text_values(source.names)),
      arrays(text_values(source.arrays)),
      members(member_values(source.members)),
      loop_members(source.loop_members.begin(), source.loop_members.end()),
      set_names(text_values(source.set_names)),
      set_members(member_values(source.set_members)),
      macros(macro_source.names),
      allows_runs(source.is_direct && !counts_from_end(source) && !sets_members_of_set_names(source)) {}

bool LoopPlan::has_own_objects(const std::vector<const jinja::value_t*>& objects) const {
    if (set_members.empty()) {
        return true;
    }
    std::map<const jinja::value_t*, std::string> names_of;
    for (size_t at = 0; at < objects.size(); ++at) {
        const std::string name = members[at].object->val_str.str();
        if (objects[at] != nullptr && names_of.emplace(objects[at], name).first->second != name) {
            return false;
        }
    }
    return true;
}

const jinja::value& undefined() {
    static const jinja::value value = jinja::mk_val<jinja::value_undefined>();
    return value;
}

jinja::value value_of(const jinja::context& scope, const jinja::value& name, const LoopPlan& plan) {
    const jinja::value value = scope.find_val(name);
    if (value == nullptr || value->is_undefined()) {
        return undefined();
    }
    const auto* function = jinja::cast_val<jinja::value_func>(value);
    if (function == nullptr) {
        return value;
    }
    const bool is_macro =
        function->arg0 == nullptr && function->name == name->val_str.str() && plan.macros.count(function->name) > 0;
    return is_macro ? macro_mark() : nullptr;
}

jinja::value_object_t* changeable_object(const jinja::value& value) {
    return value != nullptr && is_changeable(value) ? dynamic_cast<jinja::value_object_t*>(value.get()) : nullptr;
}

jinja::value member_of(const jinja::value_object_t& object, const jinja::value& name) {
    if (object.get_builtins().count(name->val_str.str()) > 0) {
        return nullptr;
    }
    const auto found = object.unordered.find(name);
    return found == object.unordered.end() || found->second->is_undefined() ? undefined() : found->second;
}

jinja::value element_of(const jinja::value& array, int64_t index) {
    jinja::value otherwise = undefined();
    const jinja::value element = array->at(index, otherwise);
    return element->is_undefined() ? undefined() : element;
}

jinja::value loop_member(const std::string& name, const std::vector<jinja::value>& items, size_t i) {
    const auto number = [](size_t n) { return jinja::mk_val<jinja::value_int>(static_cast<int64_t>(n)); };
    const auto flag = [](bool is_set) { return jinja::mk_val<jinja::value_bool>(is_set); };
    if (name == "previtem") return i > 0 ? items[i - 1] : undefined();
    if (name == "nextitem") return i + 1 < items.size() ? items[i + 1] : undefined();
    if (name == "first") return flag(i == 0);
    if (name == "last") return flag(i + 1 == items.size());
    if (name == "index") return number(i + 1);
    if (name == "index0") return number(i);
    if (name == "revindex") return number(items.size() - i);
    if (name == "revindex0") return number(items.size() - i - 1);
    return number(items.size());
}

bool holds(const LoopTurn& turn, const LoopPlan& plan, const jinja::context& scope,
           const std::vector<jinja::value>& items, size_t i) {
    return Comparison(turn, plan, scope).holds(items, i);
}

bool holds(const LoopTurn::Element& element, const LoopPlan& plan, const jinja::context& scope) {
    return is_same(element.value, element_of(value_of(scope, plan.arrays[element.array], plan), element.index));
}

void apply_changes(const std::shared_ptr<const LoopTurn>* turns, size_t n_turns, const LoopPlan& plan,
                   jinja::context& scope) {
    const auto latest = [&](std::vector<jinja::value> LoopTurn::* set, size_t n) {
        for (size_t turn = n_turns; turn-- > 0;) {
            if (const jinja::value& value = ((*turns[turn]).*set)[n]; value != nullptr) return value;
        }
        return jinja::value();
    };
    for (size_t n = 0; n < plan.set_names.size(); ++n) {
        if (const jinja::value value = latest(&LoopTurn::set_names, n); value != nullptr) {
            scope.set_val(plan.set_names[n], value);
        }
    }
    // In the order in which they came: an object's members have one.
    std::set<size_t> left;
    for (size_t n = 0; n < plan.set_members.size(); ++n) left.insert(n);
    for (size_t turn = 0; turn < n_turns && !left.empty(); ++turn) {
        std::erase_if(left, [&](size_t n) {
            if (turns[turn]->set_members[n] == nullptr) return false;
            const auto& [object, name] = plan.set_members[n];
            scope.find_val(object)->insert(name, latest(&LoopTurn::set_members, n));
            return true;
        });
    }
}

}  // namespace luce::llama
