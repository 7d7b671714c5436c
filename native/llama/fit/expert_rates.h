// How fast this machine reads experts: measured once, before a mixture that does not fit is placed. A tenth of a
// second.
#pragma once

#include <cstdint>

#include <ggml-backend.h>

#include "experts/expert_hits.h"

namespace luce::llama {

// `like`: weights of a layer's experts, [n_in, n_out, n_experts] of any type; they need no memory. `n_used`: of them
// for a token, >= 1. A rate is 0 where the device or the processor does not do it.
experts::ExpertRates measure_expert_rates(ggml_backend_dev_t gpu, const ggml_tensor& like, std::int32_t n_used,
                                          std::int32_t n_threads);

}  // namespace luce::llama
