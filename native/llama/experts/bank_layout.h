// BankLayout: how a bank divides its budget: experts, the stages that prompts need to read the others, and what of the
// experts' memory can be lent. Pure: sizes and uses go in, a layout comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "experts/expert_layout.h"
#include "llama/experts/bank_memory.h"

namespace luce::llama {

// Of the device's memory, in bytes.
struct ExpertBudget {
    std::size_t most = 0;
    std::size_t lendable = 0;  // of that; a little more is, since it comes in granules, or less where there is no more
};

struct BankLayout {
    experts::ExpertLayout experts;
    std::vector<std::int32_t> least;  // residents of each layer, where all that can be lent is
    std::vector<std::int32_t> most;   // to begin with
    std::vector<TensorSpan> spans;    // of each tensor
    bool is_streamed = false;         // prompts read by way of stages
};

// As experts::lay_out().
Result<BankLayout> lay_out_bank(const std::vector<experts::ExpertTensor>& tensors, const ExpertBudget& budget,
                                std::size_t granularity, const experts::ExpertUse& use);

}  // namespace luce::llama
