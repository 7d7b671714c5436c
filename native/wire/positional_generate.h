// The forms that ask for tokens by place: `<path> <n_gen> …`, with a slot `RESTORE …` and `RESTORE_CHAIN …`,
// `generate <in> <n_gen> <out>`, and `compress <path> …`. What they mean to the engine is not known here.
#pragma once

#include <string_view>

#include "base/result.h"
#include "wire/command.h"

namespace luce::wire {

// Whether a line whose first word is no verb is a positional generation: its first word holds a `/`, or what remains
// without trailing samp= and snap= words is two words or more and ends with a whole number.
bool is_positional_generate(std::string_view line);

Result<Command> parse_positional_generate(std::string_view line);

// `arguments`: what follows the verb.
Result<Command> parse_restore(std::string_view arguments);
Result<Command> parse_restore_chain(std::string_view arguments);
Result<Command> parse_generate(std::string_view arguments);
Result<Command> parse_positional_compress(std::string_view arguments);

}  // namespace luce::wire
