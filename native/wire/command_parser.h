// parse_command: one line (without its end) -> the command or why it is none. Pure; never throws on any input.
#pragma once

#include <string_view>
#include <variant>

#include "wire/command.h"

namespace luce::wire {

std::variant<Command, ParseError> parse_command(std::string_view line);

}  // namespace luce::wire
