#include "llama/experts/expert_lookup.h"

#include "llama/experts/expert_stream.h"
#include "llama/experts/expert_table.h"

namespace luce::llama {

ExpertLookup& ExpertLookup::instance() {
    static ExpertLookup one;
    return one;
}

void ExpertLookup::add(const ggml_tensor* weight, Entry entry) {
    entries_[weight] = entry;
    llama_experts = this;
}

void ExpertLookup::remove(const ggml_tensor* weight) { entries_.erase(weight); }

ggml_tensor* ExpertLookup::slots(const ggml_tensor* weight) const {
    const auto known = entries_.find(weight);
    return known == entries_.end() ? nullptr : known->second.table->places(known->second.layer);
}

void ExpertLookup::keep(ggml_tensor* looked_up, const ggml_tensor* weight, std::int64_t n_tokens) const {
    const Entry& entry = entries_.at(weight);
    entry.table->keep(looked_up, entry.layer, n_tokens);
}

ggml_tensor* ExpertLookup::weight(const ggml_tensor* weight, std::int64_t n_tokens) const {
    const Entry& entry = entries_.at(weight);
    return entry.streamed && n_tokens >= ExpertStream::kFrom ? entry.streamed : entry.stored;
}

}  // namespace luce::llama
