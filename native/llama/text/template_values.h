// What a template's values have in common for those who keep them: when they are the same, and how one is kept that may
// still change. Knows no templates.
#pragma once

#include <set>

#include <chat.h>
#include <jinja/runtime.h>

namespace luce::llama {

// Values that may still change, by address.
using Changeable = std::set<const jinja::value_t*>;

// As templates get it. It never changes: a template that tries gets a jinja::frozen_exception.
jinja::value frozen_value(const common_json& json);
void freeze(const jinja::value& value);

// Arrays and objects, unless they are frozen.
bool is_changeable(const jinja::value& value);
// Those that are the value or within it.
void add_changeable(const jinja::value& value, Changeable& found);

// The value as it is now; null for what cannot be compared, and for what is large and may change. Strings, numbers and
// what is frozen are themselves.
jinja::value snapshot(const jinja::value& value);
// `kept`: a snapshot. Functions are never the same, nor are two frozen values.
bool is_same(const jinja::value& kept, const jinja::value& now);

}  // namespace luce::llama
