// LenientCalls: what a format's grammar takes for a call beyond what it asks models to write. Within the marks of the
// template and with a tool's name a call is one, whatever the order of its keys or parameters, and though some are
// missing or of another type: the client tells the model what is wrong. Knows nothing of outputs.
#pragma once

#include <peg-parser.h>

namespace luce::llama {

// For parsing alone: the grammar that the engine enforces is made before, and stays strict.
void take_lenient_calls(common_peg_arena& grammar);

}  // namespace luce::llama
