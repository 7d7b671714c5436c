// Which trigger patterns may be handed to llama.cpp. It matches them with std::regex, which backtracks: the patterns
// that it would need exponential time for are refused by their shape. Knows no model.
#pragma once

#include <span>

#include "base/result.h"
#include "engine/request.h"

namespace luce::llama {

// At most 64 triggers of at most 1 KiB each, patterns that compile, with few brackets and no repeated choice. Errors:
// bad_grammar.
Result<void> check_triggers(std::span<const engine::Trigger> triggers);

}  // namespace luce::llama
