// See the header.
#include "llama/text/template_values.h"

#include <algorithm>
#include <typeinfo>

namespace luce::llama {

namespace {

constexpr size_t kMaxSnapshotValues = 64;

bool is_container(const jinja::value_t& value) {
    return dynamic_cast<const jinja::value_array_t*>(&value) != nullptr ||
           dynamic_cast<const jinja::value_object_t*>(&value) != nullptr;
}

jinja::value copy_within(const jinja::value& value, size_t& n_left) {
    if (n_left == 0 || jinja::is_val<jinja::value_func>(value) || jinja::is_val<jinja::value_kwarg>(value)) {
        return nullptr;
    }
    --n_left;
    if (!is_changeable(value)) {
        return value;
    }
    if (const auto* object = jinja::cast_val<jinja::value_object>(value)) {
        const auto copy = jinja::mk_val<jinja::value_object>();
        copy->has_builtins = object->has_builtins;
        for (const auto& [key, member] : value->val_obj) {
            const jinja::value kept = copy_within(member, n_left);
            if (kept == nullptr) {
                return nullptr;
            }
            copy->insert(key, kept);
        }
        return copy;
    }
    const auto copy = jinja::is_val<jinja::value_tuple>(value)
                          ? jinja::mk_val<jinja::value_tuple>(std::vector<jinja::value>())
                          : jinja::mk_val<jinja::value_array>();
    for (const jinja::value& item : value->val_arr) {
        const jinja::value kept = copy_within(item, n_left);
        if (kept == nullptr) {
            return nullptr;
        }
        copy->val_arr.push_back(kept);
    }
    return copy;
}

bool is_same_text(const jinja::string& a, const jinja::string& b) {
    return std::ranges::equal(a.parts, b.parts, [](const jinja::string_part& x, const jinja::string_part& y) {
        return x.is_input == y.is_input && x.val == y.val;
    });
}

}  // namespace

jinja::value frozen_value(const common_json& json) {
    jinja::context context;
    common_json holder = common_json::object();
    holder["value"] = json;
    jinja::global_from_json(context, holder, true);
    const jinja::value value = context.get_val("value");
    freeze(value);
    return value;
}

void freeze(const jinja::value& value) {
    if (!is_changeable(value)) {
        return;  // written once only: other threads read it
    }
    value->is_frozen = true;
    for (const jinja::value& item : value->val_arr) {
        freeze(item);
    }
    for (const auto& [key, member] : value->val_obj) {
        freeze(member);
    }
}

bool is_changeable(const jinja::value& value) { return !value->is_frozen && is_container(*value); }

void add_changeable(const jinja::value& value, Changeable& found) {
    if (!is_changeable(value) || !found.insert(value.get()).second) {
        return;
    }
    for (const jinja::value& item : value->val_arr) {
        add_changeable(item, found);
    }
    for (const auto& [key, member] : value->val_obj) {
        add_changeable(member, found);
    }
}

jinja::value snapshot(const jinja::value& value) {
    size_t n_left = kMaxSnapshotValues;
    return copy_within(value, n_left);
}

bool is_same(const jinja::value& kept, const jinja::value& now) {
    if (kept == now) {
        return true;
    }
    const jinja::value_t& a = *kept;
    const jinja::value_t& b = *now;
    if (typeid(a) != typeid(b) || a.is_frozen || b.is_frozen) {
        return false;
    }
    if (jinja::is_val<jinja::value_string>(kept)) {
        return is_same_text(a.val_str, b.val_str);
    }
    if (jinja::is_val<jinja::value_int>(kept) || jinja::is_val<jinja::value_bool>(kept)) {
        return a.val_int == b.val_int;
    }
    if (jinja::is_val<jinja::value_float>(kept)) {
        return a.val_int == b.val_int && a.val_flt == b.val_flt;
    }
    if (jinja::is_val<jinja::value_none>(kept) || jinja::is_val<jinja::value_undefined>(kept)) {
        return true;
    }
    if (!is_container(a)) {
        return false;
    }
    const auto is_same_member = [](const auto& x, const auto& y) {
        return is_same(x.first, y.first) && is_same(x.second, y.second);
    };
    return std::ranges::equal(a.val_arr, b.val_arr, is_same) &&
           std::ranges::equal(a.val_obj, b.val_obj, is_same_member);
}

}  // namespace luce::llama
