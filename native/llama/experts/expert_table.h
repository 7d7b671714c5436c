// ExpertTable: what a mixture's graphs find on the device beside the weights of a bank: in which place each expert
// lies, and room for the places that a call reads, which it leaves behind there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ggml-cpp.h>

#include "base/result.h"
#include "experts/expert_layout.h"

namespace luce::llama {

class ExpertTable {
public:
    // For calls of up to `n_tokens`, each of which reads `n_used` experts of a layer. Errors: out_of_memory.
    static Result<std::unique_ptr<ExpertTable>> make(ggml_backend_dev_t device, const experts::ExpertLayout& layout,
                                                     std::int32_t n_tokens, std::int32_t n_used);

    // I32 [1, n_experts] of a layer, by its index in the layout.
    ggml_tensor* places(std::size_t layer) const { return places_[layer]; }

    // Makes the device know where experts lie. No computation may run.
    void send(const experts::ExpertLayout& layout);

    // Puts a tensor of places that a graph of so many tokens will look up where it can be read after the call; too
    // large a one it leaves.
    void keep(ggml_tensor* looked_up, std::size_t layer, std::int64_t n_tokens);

    // [layer] The places that the first tokens of the last call read, at most `n_most` of its `n_tokens`; of a layer
    // that is cropped, the first of its `n_outputs`, the tokens whose logits were wanted. Waits for the device. Valid
    // until the next time; empty: the call was too large.
    const std::vector<std::vector<std::int32_t>>& read(std::int32_t n_tokens, std::int32_t n_outputs,
                                                       std::int32_t n_most);

    // What a call does not need of its last layer is not computed: only tokens whose logits are wanted reach it.
    bool is_cropped(std::size_t layer) const { return is_cropped_[layer]; }

    std::int32_t n_used() const { return n_used_; }

    static constexpr std::int32_t kSmallCall = 32;  // tokens: one copy brings all of such a call
    static constexpr std::int32_t kMostSeen = 64;

private:
    ExpertTable() = default;
    ggml_tensor* journal_of(std::int64_t n) const;

    ggml_context_ptr context_;
    ggml_backend_buffer_ptr table_memory_;
    ggml_backend_buffer_ptr journal_memory_;
    ggml_tensor* table_ = nullptr;  // I32 [1, n_experts of all layers]
    ggml_tensor* small_ = nullptr;  // I32 [kSmallCall * n_used, n_layers]
    ggml_tensor* large_ = nullptr;  // I32 [n_tokens * n_used, n_layers]
    std::vector<ggml_tensor*> places_;
    std::vector<bool> is_cropped_;
    std::int32_t n_used_ = 0;
    std::vector<std::int32_t> bytes_;
    std::vector<std::vector<std::int32_t>> seen_;
};

}  // namespace luce::llama
