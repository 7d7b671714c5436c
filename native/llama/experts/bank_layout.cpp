#include "llama/experts/bank_layout.h"

#include <utility>

#include "experts/expert_border.h"
#include "llama/experts/expert_stream.h"

namespace luce::llama {
namespace {

Result<BankLayout> lay_out_within(const std::vector<experts::ExpertTensor>& tensors, std::size_t n_bytes,
                                  std::size_t n_lendable, std::size_t granularity, const experts::ExpertUse& use) {
    Result<experts::ExpertLayout> chosen = experts::lay_out(tensors, n_bytes, granularity, use, n_lendable > 0);
    if (!chosen) return chosen.error();
    BankLayout bank;
    bank.experts = std::move(chosen).value();
    for (const experts::LayerExperts& layer : bank.experts.layers) bank.most.push_back(layer.n_resident);
    experts::ExpertLayout smallest = bank.experts;
    const std::vector<std::int32_t> one(bank.most.size(), 1);
    for (const experts::BorderMove& move : experts::give_up(smallest, n_lendable, one, use)) {
        experts::move_border(smallest, move, nullptr);
    }
    for (const experts::LayerExperts& layer : smallest.layers) bank.least.push_back(layer.n_resident);
    for (std::size_t i = 0; i < smallest.parts.size(); ++i) {
        const experts::TensorParts& part = bank.experts.parts[i];
        bank.spans.push_back({smallest.parts[i].device_bytes, part.device_bytes, part.total_bytes()});
    }
    return bank;
}

}  // namespace

// Stages take a part of the budget, as large as the largest part on the host, which grows with what they take. Where
// they would take more than a quarter there are none: experts on the device are worth more.
Result<BankLayout> lay_out_bank(const std::vector<experts::ExpertTensor>& tensors, const ExpertBudget& budget,
                                std::size_t granularity, const experts::ExpertUse& use) {
    std::size_t n_staged = 0;
    for (int round = 0; round < 8; ++round) {
        const std::size_t n_stages = ExpertStream::kStages * n_staged;
        if (n_stages > budget.most / 4) break;
        Result<BankLayout> bank = lay_out_within(tensors, budget.most - n_stages, budget.lendable, granularity, use);
        if (!bank) return bank;
        const std::size_t largest = stage_bytes(bank.value().spans);
        bank.value().is_streamed = n_staged > 0;
        if (largest <= n_staged) return bank;
        n_staged = largest;
    }
    return lay_out_within(tensors, budget.most, budget.lendable, granularity, use);
}

}  // namespace luce::llama
