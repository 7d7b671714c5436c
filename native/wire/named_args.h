// Named arguments: `key=value …` in any order, each key once, read by a table. Which keys there are and what they mean
// is the caller's table; this file knows only how to walk it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "wire/refusal.h"
#include "wire/words.h"

namespace luce::wire {

template <typename Target>
struct NamedKey {
    std::string_view name;
    bool required;
    Result<void> (*read)(Target& target, std::string_view value);
};

// Put a value that was read into its field, or pass on why there is none.
template <typename Field, typename Value>
Result<void> store(Field& field, Result<Value> value) {
    if (!value) return value.error();
    field = std::move(value).value();
    return {};
}

struct KeyValue {
    std::string_view key;
    std::string_view value;
};

// Nothing if the word is not `key=value` with a key.
inline std::optional<KeyValue> split_key_value(std::string_view word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    return KeyValue{word.substr(0, equals), word.substr(equals + 1)};
}

template <typename Target>
Result<Target> read_named_args(std::string_view arguments, std::span<const NamedKey<Target>> keys) {
    Target target;
    std::vector<bool> seen(keys.size());
    WordReader words(arguments);
    while (const std::optional<std::string_view> word = words.next()) {
        const std::optional<KeyValue> pair = split_key_value(*word);
        if (!pair) return bad_args("'" + shortened(*word) + "' is not key=value");
        std::size_t index = 0;
        while (index < keys.size() && keys[index].name != pair->key) ++index;
        if (index == keys.size()) return bad_args("unknown key " + shortened(pair->key) + "=");
        if (seen[index]) return bad_args(std::string(pair->key) + "= is given twice");
        seen[index] = true;
        const Result<void> done = keys[index].read(target, pair->value);
        if (!done) return Error{done.error().code, shortened(*word) + ": " + done.error().text};
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
        if (keys[i].required && !seen[i]) return bad_args(std::string(keys[i].name) + "= is missing");
    }
    return target;
}

}  // namespace luce::wire
