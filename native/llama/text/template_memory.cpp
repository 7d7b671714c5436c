// TemplateMemory: see the header.
#include "llama/text/template_memory.h"

#include <algorithm>
#include <exception>

namespace luce::llama {

namespace {

constexpr size_t kMaxTurnsOfAKey = 4;
constexpr size_t kMaxElements = 256;
constexpr uint64_t kUnprovenTurns = 64;  // of a loop that are kept before one has come again
constexpr size_t kTurnsToProve = 8;      // and of each rendering after that
constexpr size_t kTurnBytes = 2000;      // beside its text, about

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

const jinja::value& undefined() {
    static const jinja::value value = jinja::mk_val<jinja::value_undefined>();
    return value;
}

// Stands for a macro, which is what its name says.
const jinja::value& macro_mark() {
    static const jinja::value value = frozen_value(common_json::array());
    return value;
}

// What a name stands for; null for a function that is no macro of this name.
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

// A member, and null where its name is that of a function of all objects.
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

// Each time that the text comes again all its parts are copied.
void join_alike(std::vector<jinja::string_part>& parts) {
    std::vector<jinja::string_part> joined;
    for (jinja::string_part& part : parts) {
        if (!joined.empty() && joined.back().is_input == part.is_input) {
            joined.back().val += part.val;
        } else {
            joined.push_back(std::move(part));
        }
    }
    parts = std::move(joined);
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
               std::ranges::all_of(turn_.elements, [&](const auto& element) { return holds_element(element); });
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

    bool holds_element(const LoopTurn::Element& element) const {
        const jinja::value array = value_of(scope_, plan_.arrays[element.array], plan_);
        const jinja::value now = element_of(array, element.index);
        return is_same(element.value, now);
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
      macros(macro_source.names) {}

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

TemplateMemory::TemplateMemory(size_t max_bytes)
    : max_bytes_(max_bytes),
      inputs_([](std::string_view text) { return frozen_value(common_json::parse(std::string(text))); }, max_bytes) {}

void TemplateMemory::give_up(const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    given_up_for_ = why;
    is_in_use_ = false;
}

std::string TemplateMemory::given_up_for() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return given_up_for_;
}

jinja::value TemplateMemory::input(const common_json& json) { return inputs_.get(json.dump()); }

std::shared_ptr<const LoopPlan> TemplateMemory::plan(const jinja::for_statement& loop, const jinja::program& program) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& plan = plans_[&loop];
    if (plan == nullptr) {
        const MacroSource& macros = macros_.try_emplace(&program, program).first->second;
        plan = std::make_shared<const LoopPlan>(LoopSource(loop, macros), macros);
    }
    return plan;
}

std::vector<std::shared_ptr<const LoopTurn>> TemplateMemory::turns(const TurnKey& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<const LoopTurn>> found;
    if (const auto here = by_key_.find(key); here != by_key_.end()) {
        for (const auto entry : here->second) {
            turns_.splice(turns_.begin(), turns_, entry);
            found.push_back(entry->second);
        }
    }
    return found;
}

void TemplateMemory::keep(const TurnKey& key, std::shared_ptr<const LoopTurn> turn) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++n_kept_;
    n_bytes_ += turn->n_bytes;
    turns_.emplace_front(key, std::move(turn));
    auto& here = by_key_[key];
    here.insert(here.begin(), turns_.begin());
    const auto drop = [this](std::list<Entry>::iterator entry) {
        n_bytes_ -= entry->second->n_bytes;
        const auto of_key = by_key_.find(entry->first);
        std::erase(of_key->second, entry);
        if (of_key->second.empty()) {
            by_key_.erase(of_key);
        }
        turns_.erase(entry);
    };
    if (here.size() > kMaxTurnsOfAKey) {
        drop(here.back());
    }
    while (n_bytes_ > max_bytes_) {
        drop(std::prev(turns_.end()));
    }
}

void RenderingMemory::set_inputs(jinja::context& context, const jinja::program& program, const common_json& inputs) {
    program_ = &program;
    running_.reset();
    latest_loop_ = nullptr;
    for (const auto& [name, input] : inputs.items()) {
        if (name == "messages" && input.is_array()) {
            const auto messages = jinja::mk_val<jinja::value_array>();
            for (const common_json& message : input) {
                messages->push_back(memory_.input(message));
            }
            context.set_val(name, messages);
        } else if (input.is_array() || input.is_object()) {
            context.set_val(name, memory_.input(input));
        } else {
            common_json single = common_json::object();
            single[name] = input;
            jinja::global_from_json(context, single, true);
        }
    }
}

std::shared_ptr<const LoopPlan> RenderingMemory::plan(const jinja::for_statement& loop) {
    if (latest_loop_ != &loop) {
        latest_plan_ = memory_.plan(loop, *program_);
        latest_loop_ = &loop;
        n_watched_ = 0;
    }
    return latest_plan_;
}

jinja::value RenderingMemory::turn(const jinja::for_statement& loop, const std::vector<jinja::value>& items, size_t i,
                                   jinja::context& scope) {
    if (running_.has_value() || !items[i]->is_frozen) {
        return nullptr;  // within another turn
    }
    const std::shared_ptr<const LoopPlan> plan = this->plan(loop);
    if (!plan->is_known) {
        return nullptr;
    }
    const TurnKey key(&loop, items[i].get());
    for (const auto& known : memory_.turns(key)) {
        if (!Comparison(*known, *plan, scope).holds(items, i)) {
            continue;
        }
        for (size_t n = 0; n < plan->set_names.size(); ++n) {
            if (known->set_names[n] != nullptr) {
                scope.set_val(plan->set_names[n], known->set_names[n]);
            }
        }
        for (size_t n = 0; n < plan->set_members.size(); ++n) {
            if (known->set_members[n] != nullptr) {
                const auto& [object, name] = plan->set_members[n];
                scope.find_val(object)->insert(name, known->set_members[n]);
            }
        }
        memory_.count_reused();
        ++plan->n_reused;
        return known->text;
    }
    const bool is_proven = plan->n_kept <= kUnprovenTurns + 4 * plan->n_reused;
    if (!is_proven && n_watched_ >= kTurnsToProve) {
        return nullptr;
    }
    ++n_watched_;
    running_.emplace(&scope, key, plan);
    running_->turn.item = items[i];
    if (!watch(*running_, items, i)) {
        running_.reset();
    }
    return nullptr;
}

bool RenderingMemory::watch(Running& running, const std::vector<jinja::value>& items, size_t i) {
    const LoopPlan& plan = *running.plan;
    const jinja::context& scope = *running.scope;
    std::vector<jinja::value>& found = running.turn.found;
    const auto find = [&](const jinja::value& value) {
        found.push_back(value == nullptr ? nullptr : snapshot(value));
        if (found.back() != nullptr) {
            add_changeable(value, running.before);
        }
        return found.back() != nullptr;
    };
    for (const jinja::value& name : plan.names) {
        if (!find(value_of(scope, name, plan))) return false;
    }
    for (const jinja::value& name : plan.arrays) {
        const jinja::value value = value_of(scope, name, plan);
        const bool is_array = value != nullptr && is_changeable(value) && jinja::is_val<jinja::value_array>(value);
        running.arrays.push_back(is_array ? value.get() : nullptr);
        if (is_array) {
            found.push_back(nullptr);
        } else if (!find(value)) {
            return false;
        }
    }
    for (const auto& [name, member] : plan.members) {
        const jinja::value base = value_of(scope, name, plan);
        const auto* object = changeable_object(base);
        running.objects.push_back(object);
        running.turn.is_of_object.push_back(object != nullptr);
        if (!find(object == nullptr ? base : member_of(*object, member))) return false;
    }
    for (const std::string& name : plan.loop_members) {
        const jinja::value value = loop_member(name, items, i);
        if (is_changeable(value) || !find(value)) return false;
    }
    // A change of an object's member must be no change of anything else.
    const auto is_object = [](const jinja::value_t* value) {
        return dynamic_cast<const jinja::value_object_t*>(value) != nullptr;
    };
    return plan.has_own_objects(running.objects) &&
           (plan.set_members.empty() || std::ranges::none_of(running.before, is_object));
}

void RenderingMemory::ran(jinja::context& scope, const jinja::value_array& result, size_t begin) {
    if (!running_.has_value() || running_->scope != &scope) {
        return;
    }
    Running running = std::move(*running_);
    running_.reset();
    if (result == nullptr || !keep_changes(running)) {
        return;
    }
    jinja::value_string text = jinja::mk_val<jinja::value_string>();
    for (size_t n = begin; n < result->val_arr.size(); ++n) {
        jinja::gather_string_parts_recursive(result->val_arr[n], text);
    }
    join_alike(text->val_str.parts);
    running.turn.n_bytes = kTurnBytes + text->val_str.length();
    running.turn.text = text;
    ++running.plan->n_kept;
    memory_.keep(running.key, std::make_shared<const LoopTurn>(std::move(running.turn)));
}

bool RenderingMemory::keep_changes(Running& running) {
    const LoopPlan& plan = *running.plan;
    const jinja::context& scope = *running.scope;
    Changeable made;
    const auto can_be_kept = [&](const jinja::value& value) {
        if (jinja::is_val<jinja::value_func>(value)) {
            return false;
        }
        add_changeable(value, made);
        return true;
    };
    for (const jinja::value& name : plan.set_names) {
        const jinja::value value = scope.find_val(name);
        if (value != nullptr && !can_be_kept(value)) return false;
        running.turn.set_names.push_back(value);
    }
    for (const auto& [name, member] : plan.set_members) {
        const jinja::value base = scope.find_val(name);
        const auto* object = changeable_object(base);
        const bool is_same_object = object != nullptr && std::ranges::count(running.objects, object) > 0;
        const auto found = is_same_object ? object->unordered.find(member) : object->unordered.end();
        const bool is_set = is_same_object && found != object->unordered.end();
        if (is_set && !can_be_kept(found->second)) return false;
        running.turn.set_members.push_back(is_set ? found->second : nullptr);
    }
    // What stood before the turn and may change has other holders, who would see another value than the kept one.
    const auto stood_before = [&](const jinja::value_t* value) {
        return running.before.count(value) > 0 || std::ranges::count(running.arrays, value) > 0 ||
               std::ranges::count(running.objects, value) > 0;
    };
    if (std::ranges::any_of(made, stood_before)) {
        return false;
    }
    for (const auto& values : {running.turn.set_names, running.turn.set_members}) {
        for (const jinja::value& value : values) {
            if (value != nullptr) {
                freeze(value);
            }
        }
    }
    return true;
}

void RenderingMemory::read_element(const jinja::value& array, int64_t index, const jinja::value& element) {
    if (!running_.has_value()) {
        return;
    }
    const jinja::value value = element->is_undefined() ? undefined() : element;
    for (size_t n = 0; n < running_->arrays.size(); ++n) {
        if (running_->arrays[n] != array.get()) {
            continue;
        }
        const bool is_kept = !is_changeable(value) && !jinja::is_val<jinja::value_func>(value);
        if (!is_kept || running_->turn.elements.size() >= kMaxElements) {
            running_.reset();
            return;
        }
        running_->turn.elements.push_back({n, index, value});
    }
}

void RenderingMemory::set_member(const jinja::value& object, const std::string& name) {
    if (!running_.has_value()) {
        return;
    }
    const LoopPlan& plan = *running_->plan;
    bool is_planned = running_->before.count(object.get()) == 0;
    for (size_t n = 0; n < running_->objects.size() && is_planned; ++n) {
        if (running_->objects[n] == object.get()) {
            const std::string of = plan.members[n].object->val_str.str();
            is_planned = std::ranges::any_of(plan.set_members, [&](const LoopPlan::Member& member) {
                return member.object->val_str.str() == of && member.name->val_str.str() == name;
            });
        }
    }
    if (!is_planned) {
        running_.reset();
    }
}

void RenderingMemory::changed_array(const jinja::value& array) {
    const auto is_older = [&](const Running& running) {
        return running.before.count(array.get()) > 0 || std::ranges::count(running.arrays, array.get()) > 0;
    };
    if (running_.has_value() && is_older(*running_)) {
        running_.reset();
    }
}

}  // namespace luce::llama
