// The forms that ask for tokens: `<path> <n_gen> …` and with a slot `RESTORE …` and `RESTORE_CHAIN …`,
// `generate <in> <n_gen> <out>`, `gen key=value …`. What they mean to the engine is not known here.
#pragma once

#include <string_view>

#include "base/result.h"
#include "wire/command.h"

namespace luce::wire {

// Whether a line whose first word is no verb is a positional generation: its first word holds a `/`, or what remains
// without trailing samp= and snap= words is two words or more and ends with a whole number.
bool is_positional_generate(std::string_view line);

Result<Generate> parse_positional_generate(std::string_view line);

// `arguments`: what follows the verb.
Result<Generate> parse_restore(std::string_view arguments);
Result<Generate> parse_restore_chain(std::string_view arguments);
Result<Generate> parse_file_generate(std::string_view arguments);
Result<Generate> parse_named_generate(std::string_view arguments);

}  // namespace luce::wire
