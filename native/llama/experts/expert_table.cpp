#include "llama/experts/expert_table.h"

#include <algorithm>

namespace luce::llama {

Result<std::unique_ptr<ExpertTable>> ExpertTable::make(ggml_backend_dev_t device, const experts::ExpertLayout& layout,
                                                       std::int32_t n_tokens, std::int32_t n_used) {
    std::unique_ptr<ExpertTable> made(new ExpertTable());
    const std::size_t n_layers = layout.layers.size();
    made->context_.reset(ggml_init({(n_layers + 3) * ggml_tensor_overhead(), nullptr, true}));
    ggml_context* context = made->context_.get();
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
    const auto rows = static_cast<std::int64_t>(n_layers);
    made->small_ = ggml_new_tensor_2d(context, GGML_TYPE_I32, std::int64_t{kSmallCall} * n_used, rows);
    made->large_ = ggml_new_tensor_2d(context, GGML_TYPE_I32, std::int64_t{n_tokens} * n_used, rows);
    made->journal_memory_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
    made->table_ = ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, layout.n_experts());
    made->table_memory_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
    if (!made->journal_memory_ || !made->table_memory_) {
        return Error{ErrorCode::out_of_memory, "the device has no memory for the table of experts"};
    }
    ggml_backend_buffer_clear(made->journal_memory_.get(), 0xFF);  // no place, where no call has left one yet
    // As weights: what reads them runs where they are.
    ggml_backend_buffer_set_usage(made->table_memory_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    auto* next = static_cast<std::byte*>(made->table_->data);
    for (const experts::LayerExperts& layer : layout.layers) {
        ggml_tensor* places = ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, layer.n_experts());
        ggml_backend_tensor_alloc(made->table_memory_.get(), places, next);
        next += ggml_nbytes(places);
        made->places_.push_back(places);
    }
    made->n_used_ = n_used;
    made->seen_.resize(n_layers);
    made->is_cropped_.resize(n_layers);
    made->send(layout);
    return made;
}

void ExpertTable::send(const experts::ExpertLayout& layout) {
    bytes_.clear();
    for (const experts::LayerExperts& layer : layout.layers) {
        bytes_.insert(bytes_.end(), layer.place_of.begin(), layer.place_of.end());
    }
    ggml_backend_tensor_set(table_, bytes_.data(), 0, bytes_.size() * sizeof bytes_[0]);
}

ggml_tensor* ExpertTable::journal_of(std::int64_t n) const {
    if (n <= small_->ne[0]) return small_;
    return n <= large_->ne[0] ? large_ : nullptr;
}

void ExpertTable::keep(ggml_tensor* looked_up, std::size_t layer, std::int64_t n_tokens) {
    if (ggml_nelements(looked_up) < n_tokens * n_used_) is_cropped_[layer] = true;
    ggml_tensor* journal = journal_of(ggml_nelements(looked_up));
    if (journal == nullptr || looked_up->data != nullptr) return;
    ggml_backend_tensor_alloc(journal->buffer, looked_up,
                              static_cast<std::byte*>(journal->data) + layer * journal->nb[1]);
}

const std::vector<std::vector<std::int32_t>>& ExpertTable::read(std::int32_t n_tokens, std::int32_t n_outputs,
                                                                std::int32_t n_most) {
    const bool is_small = journal_of(std::int64_t{n_tokens} * n_used_) == small_;
    if (is_small) {
        bytes_.resize(static_cast<std::size_t>(ggml_nelements(small_)));
        ggml_backend_tensor_get(small_, bytes_.data(), 0, ggml_nbytes(small_));
    }
    for (std::size_t layer = 0; layer < seen_.size(); ++layer) {
        const std::int32_t n_rows = is_cropped_[layer] ? n_outputs : n_tokens;
        const ggml_tensor* journal = journal_of(std::int64_t{n_rows} * n_used_);
        const auto n = static_cast<std::size_t>(std::min(n_rows, n_most) * n_used_);
        std::vector<std::int32_t>& seen = seen_[layer];
        seen.clear();
        if (is_small) {
            const auto row =
                bytes_.begin() + static_cast<std::ptrdiff_t>(layer * static_cast<std::size_t>(small_->ne[0]));
            seen.assign(row, row + static_cast<std::ptrdiff_t>(n));
        } else if (journal != nullptr) {
            seen.resize(n);
            ggml_backend_tensor_get(journal, seen.data(), layer * journal->nb[1], n * sizeof(std::int32_t));
        }
    }
    return seen_;
}

}  // namespace luce::llama
