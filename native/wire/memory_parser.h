// The commands about slots, weights and caches: `SNAPSHOT <slot>` and the others in capitals, which carry no id, and
// `snapshot id= slot=` and the others by name, which always do. What a slot is, is not known here.
#pragma once

#include <string_view>

#include "base/result.h"
#include "wire/command.h"

namespace luce::wire {

struct MemoryVerb {
    std::string_view name;
    bool carries_id;  // in its form by name
    Result<Command> (*parse)(std::string_view arguments);
};

// Null if it is none of them.
const MemoryVerb* find_memory_verb(std::string_view verb);

}  // namespace luce::wire
