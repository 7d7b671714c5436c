// ElasticCache: the attention cache at addresses of its own, with memory behind the cells that may be used. The other
// cells' memory holds experts meanwhile: their bank lends it, a step at a time, and gets it back. Knows bytes of cells;
// who uses them, and when there should be more, is for others to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ggml-backend.h>

#include "base/result.h"
#include "llama/experts/expert_bank.h"

namespace luce::llama {

class ElasticCache {
public:
    // Of a step: it holds calls up for some ten milliseconds.
    static constexpr std::size_t kStepBytes = std::size_t{64} << 20;

    // Both must outlive it.
    ElasticCache(ggml_backend_dev_t device, ExpertBank& bank, std::size_t step_bytes = kStepBytes)
        : device_(device), bank_(bank), step_bytes_(step_bytes) {}
    ~ElasticCache();  // REQUIRES: nobody looks at its cells any more
    ElasticCache(const ElasticCache&) = delete;
    ElasticCache& operator=(const ElasticCache&) = delete;

    using Allocate = ggml_backend_buffer_t (*)(ggml_backend_buffer_type_t, ggml_tensor**, int);

    // While it lives, the first attention cache that is allocated on the device is put here, with as few cells as the
    // bank can make up for later.
    class [[nodiscard]] Placing {
    public:
        explicit Placing(ElasticCache& cache);
        ~Placing();
        Placing(const Placing&) = delete;
        Placing& operator=(const Placing&) = delete;

    private:
        ggml_backend_buffer_type_t type_;
        Allocate usual_;
    };

    bool is_placed() const { return buffer_ != nullptr; }
    std::int32_t n_cells() const { return n_cells_; }  // that may be used: the first ones
    std::int32_t n_most() const { return n_most_; }
    std::int32_t n_step() const { return n_step_; }
    std::size_t n_mapped_bytes() const;

    // Another number of cells may be used. Those that come are zero: masked ones are read, too. Between two calls,
    // nothing is computed or copied. Errors: out_of_memory (nothing has changed).
    Result<void> resize(std::int32_t n_cells);

private:
    // A layer's keys or values.
    struct Column {
        std::byte* at = nullptr;
        std::size_t row_bytes = 0;
        std::size_t total_bytes = 0;  // of addresses
        std::vector<SplitMemory::Block> blocks = {};
    };

    static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, ggml_tensor** tensors, int n_tensors);
    bool takes(std::span<ggml_tensor* const> tensors) const;
    Result<void> open(std::span<ggml_tensor* const> tensors, ggml_backend_buffer_type_t type);
    std::size_t granularity() const { return bank_.memory()->granularity(); }
    std::size_t n_granules(const Column& column, std::int32_t n_cells) const;
    std::size_t n_granules(std::int32_t n_cells) const;
    Result<void> grow(std::int32_t n_cells, std::vector<SplitMemory::Block> blocks);
    std::vector<SplitMemory::Block> cut(std::int32_t n_cells);
    void clear();

    ggml_backend_dev_t device_;
    ExpertBank& bank_;
    std::size_t step_bytes_;
    Allocate usual_ = nullptr;                // how its device allocates otherwise
    ggml_backend_buffer_t buffer_ = nullptr;  // the context's
    std::vector<Column> columns_;
    std::int32_t n_cells_ = 0;
    std::int32_t n_most_ = 0;
    std::int32_t n_step_ = 0;
};

}  // namespace luce::llama
