// check_computable: what of a loaded model would end the process, never end or be wrong when it is computed with, and
// so, of a draft, behind LoadGuard. Must not know what the model is for.
#pragma once

#include "base/result.h"

struct llama_model;

namespace luce::llama {

// Errors: start_failed; the text names the key or tensor.
Result<void> check_computable(const llama_model* model);

}  // namespace luce::llama
