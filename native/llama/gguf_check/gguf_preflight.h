// preflight_gguf: refuses a GGUF file with a line that names the key and its value, where reading its vocabulary would
// abort or read beyond an end: the HTTP side loads vocabularies in its own process, which has no LoadGuard. What else
// libllama does not survive while it loads, LoadGuard makes a line of; model_check.h looks at what was loaded. Must not
// load weights or know what the model is for.
#pragma once

#include <string>

#include "base/result.h"

namespace luce::llama {

// Errors: start_failed.
Result<void> preflight_gguf(const std::string& path);

}  // namespace luce::llama
