// ExpertLookup: what llama.cpp's graphs ask about stored experts, of all banks of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "llama-graph.h"

namespace luce::llama {

class ExpertTable;

class ExpertLookup final : public llama_expert_store {
public:
    struct Entry {
        ExpertTable* table = nullptr;
        std::size_t layer = 0;            // in the table
        ggml_tensor* stored = nullptr;    // the weight with all its places
        ggml_tensor* streamed = nullptr;  // the same for calls of many tokens; null: no difference
    };

    static ExpertLookup& instance();
    void add(const ggml_tensor* weight, Entry entry);
    void remove(const ggml_tensor* weight);

    ggml_tensor* slots(const ggml_tensor* weight) const override;
    void keep(ggml_tensor* looked_up, const ggml_tensor* weight, std::int64_t n_tokens) const override;
    ggml_tensor* weight(const ggml_tensor* weight, std::int64_t n_tokens) const override;

private:
    ExpertLookup() = default;
    std::unordered_map<const ggml_tensor*, Entry> entries_;
};

}  // namespace luce::llama
