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

}  // namespace

TemplateMemory::TemplateMemory(size_t max_bytes)
    : max_bytes_(max_bytes),
      runs_(max_bytes),
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
    if (running_.has_value()) {
        return nullptr;  // within another turn
    }
    if (i == 0) {
        run_loop_ = nullptr;
    }
    if (run_loop_ == &loop && i < n_run_) {
        return loops_.text(i);
    }
    if (!items[i]->is_frozen) {
        return nullptr;
    }
    const std::shared_ptr<const LoopPlan> plan = this->plan(loop);
    if (!plan->is_known) {
        return nullptr;
    }
    if (i == 0) {
        run_loop_ = &loop;
        n_run_ = loops_.begin(loop, *plan, items, scope);
        if (n_run_ > 0) {
            memory_.count_run(n_run_);
            plan->n_reused += n_run_;
            return loops_.text(0);
        }
    }
    const TurnKey key(&loop, items[i].get());
    for (const auto& known : memory_.turns(key)) {
        if (!holds(*known, *plan, scope, items, i)) {
            continue;
        }
        apply_changes(&known, 1, *plan, scope);
        loops_.note(loop, i, known);
        memory_.count_reused();
        ++plan->n_reused;
        return known->text;
    }
    const bool is_proven = plan->n_kept <= kUnprovenTurns + 4 * plan->n_reused;
    if (!is_proven && n_watched_ >= kTurnsToProve) {
        return nullptr;
    }
    ++n_watched_;
    running_.emplace(&scope, key, i, plan);
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
    const auto turn = std::make_shared<const LoopTurn>(std::move(running.turn));
    loops_.note(*running.key.first, running.i, turn);
    memory_.keep(running.key, turn);
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
